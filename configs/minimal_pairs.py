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
from ml_collections import config_dict


def get_config(tasks: str = "blimp") -> ml_collections.ConfigDict:
    """The configuration of scoring BLiMP, a part of it, or pairs of one's own."""
    return config_dict.create(
        job="minimal_pairs",
        preset=tasks,  # names the default folder: runs/minimal_pairs/TASKS
        tasks=tuple(tasks.split("+")),
        init_from="",  # the folder of a run: pre-trained, fine-tuned or converted
        baseline_init_from="",  # another run to score, drawn dashed; empty: none
        # The saved step of both: "default" (a fine-tuned run's best, any other run's
        # newest), "newest", "best" or a number; or "all" saved steps or the
        # "milestones".
        step="default",
        data=config_dict.create(
            # "tfds"; "hub": Parquet files of the Hugging Face Hub; "official": BLiMP's
            # own files, DIR/PARADIGM.jsonl; "files": pairs of your own.
            source="files" if tasks == "custom" else "tfds",
            dir="",  # DIR; for tfds its data_dir, empty: TFDS' own default
            # Your own: files, folders or globs, comma-separated; .jsonl, .csv or .tsv.
            files="",
            # Their columns: two or more sentences, or one column with a list of them.
            sentences=("sentence_good", "sentence_bad"),
            # Which is better: a column that holds its column's name or its number from
            # 0; empty: the first.
            good="",
            context="",  # read before each sentence, not scored
            paradigm="",  # a column: pairs with the same value are scored together
            max_pairs=0,  # a random subset of each paradigm of this size; 0: all
        ),
        batch_tokens=2048,  # tokens computed together
        dtype="float32",  # "bfloat16" turns near-ties into ties; empty: the run's own
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    ).lock()
