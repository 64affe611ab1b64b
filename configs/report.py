"""Writes a report on runs as one page: models, curves, the paper's tables.

    python -m gpt1_jax.main --config=configs/report.py \
        --config.runs=runs/pretrain/small,runs/finetune,runs/zero_shot

Writes report.html, which fetches nothing from the network, and the same as Markdown.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    """The configuration of a report."""
    return config_dict.create(
        job="report",
        preset="",
        # Comma-separated folders of runs, or folders above them: pre-trained,
        # fine-tuned, zero-shot and interventions.
        runs="runs",
        title="",  # the heading of the page; empty: made of what was run
        # Modules of studies outside of this program, whose results get sections too.
        studies=(),
    ).lock()
