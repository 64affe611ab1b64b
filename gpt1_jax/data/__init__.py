"""From text to training windows. Nothing in this package imports JAX."""
