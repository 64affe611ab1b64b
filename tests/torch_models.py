"""Hugging Face's PyTorch models with our parameters."""

import jax
import numpy as np
import pytest
from tiny_models import drawn_params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5  # of logits, float32


def torch_names(num_layers):
    """Our parameter -> theirs; Conv1D kernels are [in, out] as ours are."""
    names = {
        ("wte",): "transformer.tokens_embed.weight",
        ("wpe",): "transformer.positions_embed.weight",
    }
    modules = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "ln_1", "ln_2")
    for layer in range(num_layers):
        for module in modules:
            path = (f"h_{layer}", *module.split("."))
            weight = "scale" if module.startswith("ln") else "kernel"
            their_module = f"transformer.h.{layer}.{module}"
            names[(*path, weight)] = f"{their_module}.weight"
            names[(*path, "bias")] = f"{their_module}.bias"
    return names


def paths_and_leaves(params):
    return [
        (tuple(key.key for key in path), leaf)
        for path, leaf in jax.tree.leaves_with_path(params)
    ]


def perturbed_params(config, kernel_scale, seed=0):
    """Parameters with gains and biases that are not 1 and 0, and larger kernels.

    The factor lets a narrow model's activations be as large as the paper's: at a
    standard deviation of 0.02 its GELU would only see values near 0, where all
    forms of it agree.
    """
    return jax.tree.map_with_path(
        lambda path, leaf: leaf * (kernel_scale if path[-1].key == "kernel" else 1),
        drawn_params(config, seed),
    )


def torch_model(config, params):
    """Their model, float32, without dropout, holding our parameters."""
    model = transformers.OpenAIGPTLMHeadModel(
        transformers.OpenAIGPTConfig(
            vocab_size=config.vocab_size,
            n_positions=config.max_seq_len,
            n_embd=config.embed_dim,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            attn_implementation="eager",
        )
    ).eval()
    theirs, names = dict(model.named_parameters()), torch_names(config.num_layers)
    assert set(names.values()) == set(theirs)
    with torch.no_grad():
        for path, leaf in paths_and_leaves(params):
            theirs[names[path]].copy_(torch.tensor(np.asarray(leaf)))
    assert model.lm_head.weight is model.transformer.tokens_embed.weight
    return model


def largest_difference(ours, theirs):
    return float(np.abs(np.asarray(ours) - theirs).max())
