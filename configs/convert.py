"""Converts a model to and from OpenAI's and Hugging Face's formats.

    python -m gpt1_jax.main --config=configs/convert.py:huggingface \
        --config.init_from=runs/pretrain/quickstart --workdir=exported/gpt1

The model may be a run folder, OpenAI's model/ folder or a Hugging Face folder;
its files tell which. --workdir names the folder to make, which must be new or empty.

Presets:
  run          a run folder, from which every job can start (the default).
  huggingface  a folder for transformers.
  openai       shards in the layout of OpenAI's release.
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config(preset: str = "run") -> ml_collections.ConfigDict:
    """The configuration for converting a model."""
    config = default_config("convert", preset, ("run", "huggingface", "openai"))
    config.target = preset
    return config.lock()
