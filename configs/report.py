"""Writes a report on runs as one page: models, curves, the paper's tables.

    python -m gpt1_jax.main --config=configs/report.py \
        --config.runs=runs/pretrain/small,runs/finetune,runs/zero_shot

Writes report.html, which fetches nothing from the network, and the same as Markdown.
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The configuration of a report."""
    return default_config("report").lock()
