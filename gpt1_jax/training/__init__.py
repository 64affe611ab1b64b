"""Losses, the optimizer, the step functions and the one host loop."""
