"""Computes the surprisal of each word of a text, from any run folder.

    python -m gpt1_jax.main --config=configs/surprisal.py \
        --config.init_from=runs/pretrain/quickstart --config.text='it was a dark night'
    ... --config.input=novel.txt --config.context=text
    ... --config.input=reading_times.csv --config.words_column=word \
        --config.text_column=item --config.output=with_surprisal.csv

Words are separated by white space. A word's surprisal is -log P(word | the text
before it), in nats and in bits; docs/surprisal.md has the rules.
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The configuration for the surprisal of words."""
    return default_config("surprisal").lock()
