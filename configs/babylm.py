"""Evaluates a run as the BabyLM challenge does, and collects a submission.

    python -m gpt1_jax.main --config=configs/babylm.py:strict-small \
        --config.init_from=runs/pretrain/babylm --config.data.dir=evaluation_data \
        [--config.finetuned_dir=runs/finetune/babylm,runs/finetune/babylm_long]

Scores the full set at one step and the fast set at every milestone, and writes
predictions as the challenge's own pipeline does. After the colon, name the track:
strict-small (10 million words) or strict (100 million).
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config(track: str = "strict-small") -> ml_collections.ConfigDict:
    """The configuration of BabyLM's evaluation."""
    config = default_config("babylm", track)
    config.track = track
    return config.lock()
