"""Tasks that a model was not trained on (sec. 5)."""
