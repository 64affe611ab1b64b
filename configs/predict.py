"""Labels new text with a fine-tuned model.

    python -m gpt1_jax.main --config=configs/predict.py \
        --config.init_from=runs/finetune/sst2 --config.text='a warm , funny film'
    ... --config.input=reviews.csv --config.output=labels.csv

An input line holds the texts of one example, separated by tabs: the task's columns in
order, then its choices. A file of rows (.jsonl, .json, .tsv, .csv or .parquet) uses the
task's column names; the output (.jsonl, .tsv, .csv or .parquet) has all its columns,
then the prediction and the probability of each label. "-" is standard input, as lines
or JSON lines.
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The configuration for labelling new text."""
    return default_config("predict").lock()
