"""Shows which heads, layers and positions a model's choice depends on.

    python -m gpt1_jax.main --config=configs/interventions.py \
        --config.init_from=runs/pretrain/quickstart [--config.step=milestones]

Each head, each layer's attention and MLP, and each layer's input at some positions is
replaced alone, and the difference between the log-probabilities of two sentences is
measured again. After a colon, name paradigms, terms or fields of BLiMP (Warstadt et al.
2020), joined by "+": interventions.py:anaphor_agreement. Pairs of your own, or prompts
with two answers, are read with

    --config=configs/interventions.py:custom --config.data.files=pairs.jsonl

and activations are patched from clean prompts into corrupted ones with

    --config.method=patch --config.data.context=clean --config.data.corrupted=corrupted
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config(tasks: str = "subject_verb_agreement") -> ml_collections.ConfigDict:
    """The configuration of interventions on a part of BLiMP, or on one's own pairs."""
    config = default_config("interventions", tasks)
    config.tasks = tuple(tasks.split("+"))
    config.data.source = "files" if tasks == "custom" else "tfds"
    return config.lock()
