"""Trainings and other models that show whether ours learns what it should."""
