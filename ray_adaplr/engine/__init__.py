"""The thin Ray shell: placement, members as actors, supervision, checkpoints."""
