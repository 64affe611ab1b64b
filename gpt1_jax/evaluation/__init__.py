"""How a trained model is scored, and how its predictions are written."""
