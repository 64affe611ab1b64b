"""Measures how well surprisal predicts how long people read each word.

    python -m gpt1_jax.main --config=configs/reading_times.py:natural_stories \
        --config.init_from=runs/pretrain/quickstart [--config.step=milestones] \
        --config.data.times=natural_stories/processed_wordinfo.tsv

Presets:
  natural_stories  self-paced reading of ten stories (Futrell et al. 2021; the default).
  babylm           the self-paced times of BabyLM's reading_data.csv, 205 sentences.
  custom           a table of your own; name its columns.

Linear models of the times, without and with surprisal, are compared on stories that
they were not fitted to; docs/reading-times.md says how.
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config(preset: str = "natural_stories") -> ml_collections.ConfigDict:
    """The configuration for comparing surprisal with reading times."""
    presets = ("natural_stories", "babylm", "custom")
    config = default_config("reading_times", preset, presets)
    if preset == "natural_stories":
        config.data.update(time="meanItemRT", story="item", position="zone")
    if preset == "babylm":
        config.data.update(
            time="self_paced_reading_time",
            story="item",
            context="item",
            length="length",
            log_frequency="Subtlex_log10",
        )
    return config.lock()
