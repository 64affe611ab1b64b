"""Verifies that checkpoints are whole and agree with their training."""
