"""Writes a page to look inside models, also over training.

    python -m gpt1_jax.main --config=configs/explore.py \
        --config.runs=runs/pretrain/quickstart [--config.text='a text of yours']

One HTML file, which works from disk and fetches nothing: a text coloured by surprisal
over training, the next tokens that the model expects at each place, attention by layer
and head, how similar layers are, and what the run sampled. Two runs stand side by side:

    ... --config.runs=runs/suite/transformer-0,runs/suite/lstm-0
"""

import ml_collections
from ml_collections import config_dict

_TEXT = (
    "It was a cold morning, and the old man walked down to the river with his dog.\n"
    '"You are late again," said the woman at the bridge, but she smiled when she saw '
    "him. The dog, who had never liked the water, stood still and looked at them both "
    "until the man took a piece of bread out of his pocket."
)


def get_config() -> ml_collections.ConfigDict:
    """The configuration for a page to look inside models."""
    return config_dict.create(
        job="explore",
        preset="",
        runs="",  # run folders of any kind, separated by commas
        # The saved steps of each: "all", "milestones", "newest", "best", "default" (a
        # fine-tuned run's best, any other run's newest) or a number.
        step="all",
        text=_TEXT,  # a text of up to 1,000 words; or
        input="",  # a .txt file, instead of it
        output="explore.html",
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    ).lock()
