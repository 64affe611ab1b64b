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
from ml_collections import config_dict


def get_config(preset: str = "run") -> ml_collections.ConfigDict:
    """The configuration for converting a model."""
    if preset not in ("run", "huggingface", "openai"):
        raise ValueError(
            f"configs/convert.py has no preset {preset!r}; "
            "choose one of run, huggingface, openai."
        )
    return config_dict.create(
        job="convert",
        preset=preset,
        target=preset,  # the format to write
        init_from="",  # the folder to convert
        # The step of a run: "default" (a fine-tuned run's best, any other run's
        # newest), "newest", "best" or a number. "all" writes each saved step to a
        # folder step-N, "milestones" each milestone to a folder chck_1M, chck_2M, ...
        step="default",
        # Push the folder for transformers to the Hugging Face Hub: "hf://ORG/NAME".
        # One model goes to the branch main, each of several steps to one of its own.
        push_to="",
        push_private=True,  # whether a new repository is private
        push_confirm=False,  # push without a question what is listed
        push_license="",  # for the model card, as the Hub calls it: "apache-2.0"
        push_language=(),  # codes of ISO 639, such as "en" or "de,fr"
        # A run folder's values besides the sizes; configs/pretrain.py explains them.
        model=config_dict.create(
            embed_dropout=0.1,
            attn_dropout=0.1,
            resid_dropout=0.1,
            embed_dropout_on="sum",
            attention_form="auto",
            layer_norm_form="auto",
            softmax_rows="tokens",
            loss_chunk=0,
            dtype="float32",
            layer_loop="unrolled",
            remat=False,
        ),
    ).lock()
