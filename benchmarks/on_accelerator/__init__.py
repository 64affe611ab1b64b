"""All that is worth measuring on a GPU or TPU, in one command."""
