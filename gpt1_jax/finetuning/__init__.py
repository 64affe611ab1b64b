"""Fine-tuning: head, loss and step; initial states, scores, predictions, results."""
