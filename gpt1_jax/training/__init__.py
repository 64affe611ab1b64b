"""The optimizer, the train state, the step functions and the host loop."""
