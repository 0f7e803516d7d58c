"""The thin Ray shell: storage, placement, members as actors, supervision, checkpoints."""
