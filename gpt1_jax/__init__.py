"""GPT-1 (Radford et al. 2018) in JAX and Flax."""

__version__ = "0.2.0.dev0"
