"""A trained model as a model class of EleutherAI's lm-evaluation-harness."""
