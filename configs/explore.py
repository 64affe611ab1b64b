"""Writes a page to look inside models, also over training.

    python -m gpt1_jax.main --config=configs/explore.py \
        --config.runs=runs/pretrain/quickstart [--config.text='a text of yours']

One HTML file, which works from disk and fetches nothing: a text coloured by surprisal
over training, the next tokens that the model expects at each place, attention by layer
and head, how similar layers are, and what the run sampled. Two runs stand side by side:

    ... --config.runs=runs/suite/transformer-0,runs/suite/lstm-0
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The configuration for a page to look inside models."""
    return default_config("explore").lock()
