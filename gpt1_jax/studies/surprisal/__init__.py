"""The surprisal of words."""
