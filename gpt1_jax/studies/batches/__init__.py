"""The training text that a run has read."""
