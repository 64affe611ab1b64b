"""What fine-tuning needs besides its step, from initial states to predictions."""
