"""BabyLM's evaluation."""
