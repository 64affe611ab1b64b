"""Lists the text that updates read, or the updates that read a passage.

    python -m gpt1_jax.main --config=configs/batches.py \
        --config.init_from=runs/pretrain/quickstart --config.steps=1200,1201
    ... --config.passage='a text of yours' [--config.output=read.jsonl]

Needs the run folder and the text it was trained on, unchanged.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    """The configuration for looking up training text by update, or updates by text."""
    return config_dict.create(
        job="batches",
        preset="",
        init_from="",  # the folder of a pre-training run
        # The updates whose batches to list; update N makes the state of step N.
        steps=(),
        passage="",  # or: a text; lists the updates that read it
        # Where the text is now; empty: where the run had it.
        data=config_dict.create(train="", valid="", cache_dir=""),
        output="",  # a .jsonl file; empty: print
    ).lock()
