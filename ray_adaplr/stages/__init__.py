"""The steps of a run: pretrain, infer, refine (the method), distill, evaluate, and `adapt`, which strings them."""
