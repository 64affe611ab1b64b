"""Trainings that show whether a model learns as it should."""
