"""Verifies the saved steps of runs and exports against their training.

    python -m gpt1_jax.main --config=configs/verify.py --config.runs=finetuning/suite \
        [--config.losses=2] [--config.retrain_step=64] [--config.output=verified.json] \
        [--config.table=published/trajectory.json]

Reads run folders and exported ones (configs/convert.py), or folders above them. Each
saved step must have the files and the parameters that were saved, no two may be the
same, and all must have one tokenizer and configuration. Prints a table and at the end
"Verified", with what was recomputed and what was only compared, or what is wrong; the
program then ends with code 1. Only retraining, or a table kept elsewhere, can show
which training the states come from.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    """The configuration for checking runs and exports."""
    return config_dict.create(
        job="verify",
        preset="",
        # Comma-separated folders of runs and exports, or folders above them.
        runs="",
        # Recompute the validation loss of this many steps of each run, spread from its
        # last to its first, and compare it with metrics.jsonl. 0: none.
        losses=0,
        # Retrain from this saved step to the next milestone, which must give the same
        # parameters, bit for bit or nearly; empty: do not.
        retrain_step="",
        # A trajectory.json, or an output of this job, that was published or kept
        # elsewhere: every folder must agree with it. Empty: compare with no table.
        table="",
        # For losses and training: where the text is now; empty: where the run had it.
        data=config_dict.create(train="", valid="", cache_dir=""),
        output="",  # a .json file for all findings; empty: none
    ).lock()
