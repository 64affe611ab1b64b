"""Writes hidden states of words or lines, from any run folder.

    python -m gpt1_jax.main --config=configs/features.py \
        --config.init_from=runs/pretrain/quickstart --config.input=novel.txt \
        --config.context=text --config.output=novel.npz
    ... --config.input=story.csv --config.words_column=word --config.context_words=5 \
        --config.layers=9 --config.output=story.h5

The file has an array for each layer with a row for each word or line, and names the
word or line of each row; docs/features.md has the rules.
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The configuration for hidden states of words and lines."""
    return default_config("features").lock()
