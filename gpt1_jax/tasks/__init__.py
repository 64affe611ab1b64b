"""The tasks GPT-1 is fine-tuned on: where their examples are and what they ask."""
