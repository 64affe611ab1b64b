"""The optimizer, the train state, the step function and the host loop."""
