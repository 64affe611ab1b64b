"""The Pallas kernels for TPU and GPU, reached by name."""
