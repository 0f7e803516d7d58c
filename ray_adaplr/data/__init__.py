"""Images in, `ImageStore` out: the store itself, the readers of published formats, and the benchmarks' protocols."""
