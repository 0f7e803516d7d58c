"""Search spaces for `ray-adaplr tune`, a file each: `space(num_classes)` gives settings as a Ray Tune space.

A key is a setting's name, or several names with commas whose values are tuples: settings that only fit together, such
as members and their residual labels (n_e * n_rl <= C - 1), are chosen together. A file of your own looks the same.
"""
