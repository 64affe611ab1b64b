"""The words of a text: their surprisal, and the hidden states at their ends."""
