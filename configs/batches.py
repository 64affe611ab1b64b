"""Lists the text that updates read, or the updates that read a passage.

    python -m gpt1_jax.main --config=configs/batches.py \
        --config.init_from=runs/pretrain/quickstart --config.steps=1200,1201
    ... --config.passage='a text of yours' [--config.output=read.jsonl]

Needs the run folder and the text it was trained on, unchanged.
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The configuration for looking up training text by update, or updates by text."""
    return default_config("batches").lock()
