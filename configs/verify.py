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

from gpt1_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The configuration for checking runs and exports."""
    return default_config("verify").lock()
