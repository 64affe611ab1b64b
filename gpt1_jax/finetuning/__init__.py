"""Fine-tuning apart from its step: initial states, scores, predictions, results."""
