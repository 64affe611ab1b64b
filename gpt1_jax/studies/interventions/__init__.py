"""What each head, layer and position does to the choice between two answers."""
