"""This package beside PyTorch, on the same work."""
