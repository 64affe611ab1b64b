"""What is on disk in a run folder: written, checked, found again."""
