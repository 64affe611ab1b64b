"""What a trained model is asked, and how the answers are shown."""
