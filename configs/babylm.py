"""Evaluates a run as the BabyLM challenge does, and collects a submission.

    python -m gpt1_jax.main --config=configs/babylm.py:strict-small \
        --config.init_from=runs/pretrain/babylm --config.data.dir=evaluation_data \
        [--config.finetuned_dir=runs/finetune/babylm,runs/finetune/babylm_long]

Scores the full set at one step and the fast set at every milestone, and writes
predictions as the challenge's own pipeline does. After the colon, name the track:
strict-small (10 million words) or strict (100 million).
"""

import ml_collections
from ml_collections import config_dict


def get_config(track: str = "strict-small") -> ml_collections.ConfigDict:
    """The configuration of BabyLM's evaluation."""
    return config_dict.create(
        job="babylm",
        preset=track,  # names the default folder: runs/babylm/TRACK
        track=track,  # decides which milestones a submission needs
        init_from="",  # the folder of a run: pre-trained or converted
        # The step for the full set: "default" (the newest), "best" or a number.
        step="default",
        sets=("full", "fast"),  # or one of them; "fast" is scored at the milestones
        # "all", or some of: blimp blimp_supplement ewok entity_tracking wug_adj
        # wug_past comps reading aoa
        tasks=("all",),
        finetuned_dir="",  # folders of runs of finetune.py:babylm, .., comma-separated
        data=config_dict.create(
            dir="",  # the pipeline's evaluation_data, with full_eval and fast_eval
        ),
        batch_tokens=2048,  # tokens computed together
        dtype="float32",  # "bfloat16" is less precise; empty: the run's own
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    ).lock()
