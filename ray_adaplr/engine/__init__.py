"""The thin Ray shell: storage, placement, members as actors, supervision, checkpoints."""

import gc

# Loading torch makes objects by the hundred thousand, and all stay: with Python's 700 a sixth of the loading time goes
# into looking for garbage among them (2.1 s of a core, 1.8 s with this). A member imports this package first of all.
gc.set_threshold(50_000)
