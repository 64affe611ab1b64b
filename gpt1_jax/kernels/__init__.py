"""The Pallas kernels for TPU and GPU and the choice of them, reached by name."""
