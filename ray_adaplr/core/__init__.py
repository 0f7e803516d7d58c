"""The method itself: pure torch and numpy. No Ray, no files, no clocks, no global random state."""
