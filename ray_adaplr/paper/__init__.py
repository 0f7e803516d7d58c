"""The paper's benchmarks: the rows of its tables by its protocol, beside the figures it published."""
