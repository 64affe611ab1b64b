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
from ml_collections import config_dict


def get_config(tasks: str = "subject_verb_agreement") -> ml_collections.ConfigDict:
    """The configuration of interventions on a part of BLiMP, or on one's own pairs."""
    return config_dict.create(
        job="interventions",
        preset=tasks,  # names the default folder: runs/interventions/TASKS
        tasks=tuple(tasks.split("+")),
        init_from="",  # the folder of a run: pre-trained, fine-tuned or converted
        baseline_init_from="",  # another run, such as one of another seed; empty: none
        # The saved step of both: "default" (a fine-tuned run's best, any other run's
        # newest), "newest", "best" or a number; or "all" saved steps or the
        # "milestones".
        step="default",
        # What replaces a component: "zero"; its "mean" over all tokens of all
        # sentences; or, to "patch", what it gives after the clean prompt.
        method="mean",
        # How many positions to replace, from the last one before the sentences differ
        # (or from the end of the prompt, to patch) backwards.
        positions=8,
        data=config_dict.create(
            # "tfds"; "hub": Parquet files of the Hugging Face Hub; "official": BLiMP's
            # own files, DIR/PARADIGM.jsonl; "files": pairs of your own.
            source="files" if tasks == "custom" else "tfds",
            dir="",  # DIR; for tfds its data_dir, empty: TFDS' own default
            # Your own: files, folders or globs, comma-separated; .jsonl, .csv or .tsv.
            files="",
            # Their columns: two sentences or answers, or one column with a list of two.
            sentences=("sentence_good", "sentence_bad"),
            # Which is better: a column that holds its column's name or its number from
            # 0; empty: the first.
            good="",
            context="",  # a column: the prompt before both, not scored
            corrupted="",  # a column: a prompt of as many tokens, to patch into
            paradigm="",  # a column; pairs of each value are drawn apart
            max_pairs=100,  # a random subset of each paradigm of this size; 0: all
        ),
        batch_tokens=8192,  # tokens computed together
        dtype="float32",  # "bfloat16" is less precise; empty: the run's own
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    ).lock()
