"""From text to training windows. Nothing in this room imports JAX."""
