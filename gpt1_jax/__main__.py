"""`python -m gpt1_jax`, the same as `python -m gpt1_jax.main`."""

from gpt1_jax.main import run

if __name__ == "__main__":
    run()
