"""Generates text that continues prompts, from any run folder.

    python -m gpt1_jax.main --config=configs/generate.py \
        --config.init_from=runs/pretrain/quickstart --config.prompt='it was a'
    ... --config.input=prompts.txt --config.output=continuations.jsonl

Prompts come from a flag, from a file (one on each line, or JSON lines with "prompt") or
from standard input; at a terminal, the program asks for them. A single continuation
appears word by word as it is generated.
"""

import ml_collections

from gpt1_jax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The configuration for continuing texts."""
    return default_config("generate").lock()
