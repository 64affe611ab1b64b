"""What a run folder holds on disk: written, checked, read back."""
