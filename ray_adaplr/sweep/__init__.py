"""Sweeps with Ray Tune: what to sweep, the trials, and what they came to."""
