"""Hidden states of words and lines."""
