"""A page to look inside models."""
