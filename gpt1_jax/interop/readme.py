"""The README of an exported folder."""

import math
from typing import NamedTuple

from gpt1_jax.interop import names
from gpt1_jax.interop.names import Sizes


class Export(NamedTuple):
    """What an exported folder is."""

    sizes: Sizes
    origin: str  # "step 1,200, the newest, of runs/pretrain/small"
    version: str  # of gpt1_jax
    tokenizer: str  # its kind
    architecture: str = ""  # the class of transformers; "" in OpenAI's format
    notes: tuple[str, ...] = ()  # what could not be carried


def describe(export: Export) -> str:
    """Markdown: what it is, where it is from, how to load it, what is not in it."""
    loading = _in_transformers(export) if export.architecture else _as_shards()
    if export.architecture in ("", _LANGUAGE_MODEL):  # heads are not read back
        loading += _IN_GPT1_JAX
    notes = "".join(f"- {note}\n" for note in (*export.notes, *_ALWAYS))
    return (
        f"# A GPT-1 from gpt1_jax\n\n"
        f"A language model after Radford et al. (2018):\n{_shown(export.sizes)}.\n\n"
        f"Exported by gpt1_jax {export.version} from {export.origin}.\n"
        f"Tokenizer: {export.tokenizer}.\n\n"
        f"## Load it\n\n{loading}\n"
        f"## What is not carried\n\n{notes}"
    )


_LANGUAGE_MODEL = "OpenAIGPTLMHeadModel"
_IN_GPT1_JAX = """
In gpt1_jax:

    python -m gpt1_jax.main --config=configs/convert.py:run \\
        --config.init_from=THIS_FOLDER --workdir=NEW_RUN_FOLDER
"""
_ALWAYS = ("The optimizer's state and the configuration of the run are left out.",)


def _shown(sizes: Sizes) -> str:
    count = sum(math.prod(tensor.shape) for tensor in names.tensors(sizes))
    return (
        f"{count:,} parameters: {sizes.num_layers} layers of width {sizes.embed_dim}, "
        f"{sizes.num_heads} heads, {sizes.max_seq_len} positions, {sizes.vocab_size:,} "
        "tokens"
    )


def _in_transformers(export: Export) -> str:
    name = export.architecture
    loader = "AutoModelForCausalLM" if name == _LANGUAGE_MODEL else name
    return (
        f"    from transformers import {loader}, AutoTokenizer\n\n"
        f'    model = {loader}.from_pretrained("THIS_FOLDER")\n'
        '    tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")\n'
    )


def _as_shards() -> str:
    return (
        "The layout is that of `model/` in openai/finetune-transformer-lm: ten shards\n"
        "of one flat vector, whose tensors `params_shapes.json` lists.\n"
    )
