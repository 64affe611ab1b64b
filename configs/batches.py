"""Tells what the updates of a run read, or when a passage was read.

    python -m gpt1_jax.main --config=configs/batches.py \
        --config.init_from=runs/pretrain/quickstart --config.steps=1200,1201
    ... --config.passage='a text of yours' [--config.output=read.jsonl]

Needs the run folder and the text it was trained on, unchanged.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    """The configuration of looking up what was read."""
    return config_dict.create(
        job="batches",
        preset="",
        init_from="",  # the folder of a pre-training run
        # The updates whose batches to list: update N is the one that makes state N.
        steps=(),
        passage="",  # or: a text, of which to list the updates that read it
        # Where the text is now; empty: where the run had it.
        data=config_dict.create(train="", valid="", cache_dir=""),
        output="",  # a .jsonl file; empty: print
    ).lock()
