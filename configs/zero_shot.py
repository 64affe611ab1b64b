"""Scores tasks without training on them (sec. 5; Figure 2, right).

    python -m gpt1_jax.main --config=configs/zero_shot.py \
        --config.init_from=runs/pretrain/quickstart [--config.step=all] \
        [--config.baseline_init_from=runs/pretrain/lstm]

After a colon, name one of the tasks below, several joined by "+", or `all`. NAME:SPLIT
takes another split of a task, as in zero_shot.py:sst2+copa:train

    cola sst2 race dpr story_cloze copa wsc273
"""

import ml_collections
from ml_collections import config_dict


def get_config(tasks: str = "all") -> ml_collections.ConfigDict:
    """The configuration of zero-shot evaluation on one task, several or all."""
    return config_dict.create(
        job="zero_shot",
        preset=tasks,  # names the default folder: runs/zero_shot/TASKS
        tasks=tuple(tasks.split("+")),
        init_from="",  # the folder of a run: pre-trained, fine-tuned or converted
        # Another run to score, drawn dashed like the paper's LSTM; empty: none.
        baseline_init_from="",
        # The saved step of both: "default" (a fine-tuned run's best, any other run's
        # newest), "newest", "best" or a number; or "all" saved steps or the
        # "milestones".
        step="default",
        seed=0,  # for the resamples that give standard errors
        data=config_dict.create(
            # "tfds"; "hub": Parquet files of the Hugging Face Hub; "jsonl":
            # DIR/TASK/SPLIT.jsonl; "official": the files as their authors distribute
            # them, under DIR (not for dpr and wsc273).
            source="tfds",
            dir="",  # DIR; for tfds its data_dir, empty: TFDS' own default
            max_examples=0,  # a random subset of each split of this size; 0: all
        ),
        batch_tokens=2048,  # tokens computed together
        dtype="",  # "float32" or "bfloat16"; empty: the run's own
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    ).lock()
