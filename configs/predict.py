"""Labels new text with a fine-tuned model.

    python -m gpt1_jax.main --config=configs/predict.py \
        --config.init_from=runs/finetune/sst2 --config.text='a warm , funny film'
    ... --config.input=reviews.txt --config.output=labels.jsonl

An input line holds the texts of one example, separated by tabs: the task's columns in
order, then its choices. A .jsonl file has an object on each line, and a .tsv or .csv
file has a header; both use the task's column names. The output repeats a column idx, id
or index. "-" is standard input, as lines or JSON lines.
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The configuration for labelling new text."""
    return default_config("predict").lock()
