"""What a run has read."""
