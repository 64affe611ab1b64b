"""Ways to look at trained models, one folder each."""
