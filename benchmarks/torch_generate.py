"""The peers of `generate.py`: transformers' generate, eager."""

import argparse

import numpy as np
import torch
from harness import Trainer
from recipe import pretrain_config
from torch_peers import device_kind, device_name, peak_bytes, synchronize


def build(flags: argparse.Namespace, dtype: str, *, architecture: str) -> Trainer:
    """GPT-1, or a GPT-2 as deep and wide, of random weights."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        OpenAIGPTConfig,
        OpenAIGPTLMHeadModel,
    )

    torch.manual_seed(0)
    sizes = pretrain_config(flags, dtype).model_config(flags.vocab_size)
    shared = dict(
        n_layer=sizes.num_layers, n_head=sizes.num_heads, n_embd=sizes.embed_dim
    )
    if architecture == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**shared))
    else:
        shared |= dict(vocab_size=flags.vocab_size, n_positions=sizes.max_seq_len)
        model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**shared))
    model = model.to(device_kind(), getattr(torch, dtype)).eval()

    def step(batch: tuple[torch.Tensor, int]) -> float:
        prompts, number = batch
        tokens = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            min_new_tokens=number,
            max_new_tokens=number,
            pad_token_id=0,
        )
        return float(tokens[-1, -1])

    def put(batch: tuple[np.ndarray, int]) -> tuple[torch.Tensor, int]:
        prompts, number = batch
        return torch.from_numpy(prompts).long().to(device_kind()), number

    return Trainer(put, step, synchronize, device_name(), peak_bytes)
