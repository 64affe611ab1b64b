"""Scores minimal pairs: is the better sentence more likely to the model?

    python -m gpt1_jax.main --config=configs/minimal_pairs.py \
        --config.init_from=runs/pretrain/quickstart [--config.step=milestones] \
        [--config.baseline_init_from=runs/pretrain/lstm]

After a colon, name paradigms, terms or fields of BLiMP (Warstadt et al. 2020), several
joined by "+", or all: minimal_pairs.py:island_effects+morphology. Pairs of your own
are read with

    --config=configs/minimal_pairs.py:custom --config.data.files=pairs.jsonl
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config(tasks: str = "blimp") -> ml_collections.ConfigDict:
    """The configuration of scoring BLiMP, a part of it, or pairs of one's own."""
    config = default_config("minimal_pairs", tasks)
    config.tasks = tuple(tasks.split("+"))
    config.data.source = "files" if tasks == "custom" else "tfds"
    return config.lock()
