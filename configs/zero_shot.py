"""Scores tasks without training on them (sec. 5; Figure 2, right).

    python -m gpt1_jax.main --config=configs/zero_shot.py \
        --config.init_from=runs/pretrain/quickstart [--config.step=all] \
        [--config.baseline_init_from=runs/pretrain/lstm]

After a colon, name one of the tasks below, several joined by "+", or `all`. NAME:SPLIT
takes another split of a task, as in zero_shot.py:sst2+copa:train

    cola sst2 race dpr story_cloze copa wsc273
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config(tasks: str = "all") -> ml_collections.ConfigDict:
    """The configuration of zero-shot evaluation on one task, several or all."""
    config = default_config("zero_shot", tasks)
    config.tasks = tuple(tasks.split("+"))
    return config.lock()
