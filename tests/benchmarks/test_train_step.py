"""The peers train the same model as the paper's, and the script measures a step."""

import json

import numpy as np
import pytest

SIZES = dict(vocab_size=97, max_seq_len=16, num_layers=2, num_heads=2, embed_dim=32)
TINY = ("--layers=1", "--embed_dim=64", "--vocab_size=97", "--seq_len=16", "--batch=2")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def make_gpt(torch, dropout):
    from torch_peers import GPT

    torch.manual_seed(0)
    return GPT(**SIZES, mlp_dim=128, dropout=dropout)


def tokens_of(torch):
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (3, 16))
    return torch.from_numpy(tokens)


def their_state(gpt):
    """The weights of `GPT` under the names of transformers' model."""
    modules = {
        "c_attn": "attn.c_attn",
        "attn_proj": "attn.c_proj",
        "c_fc": "mlp.c_fc",
        "mlp_proj": "mlp.c_proj",
        "ln_1": "ln_1",
        "ln_2": "ln_2",
    }
    state = {
        "transformer.tokens_embed.weight": gpt.wte.weight,
        "transformer.positions_embed.weight": gpt.wpe.weight,
        "lm_head.weight": gpt.wte.weight,
    }
    for layer, block in enumerate(gpt.blocks):
        for ours, theirs in modules.items():
            module = getattr(block, ours)
            name = f"transformer.h.{layer}.{theirs}"
            weight = module.weight  # of dense layers, theirs are [in, out]
            state[f"{name}.weight"] = weight.T if weight.ndim > 1 else weight
            state[f"{name}.bias"] = module.bias
    return state


def test_gpt_has_the_loss_of_transformers_model(torch):
    transformers = pytest.importorskip("transformers")
    gpt = make_gpt(torch, dropout=0.0).double()
    with torch.no_grad():
        for parameter in gpt.parameters():  # gains of 1 and biases of 0 hide mistakes
            parameter.add_(0.1 * torch.randn_like(parameter))
    config = transformers.OpenAIGPTConfig(
        vocab_size=97, n_positions=16, n_layer=2, n_head=2, n_embd=32
    )
    theirs = transformers.OpenAIGPTLMHeadModel(config).double().eval()
    theirs.load_state_dict(their_state(gpt))
    tokens = tokens_of(torch)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, labels=tokens).loss
        # Logits alone are rounded to float32. With the erf form of GELU it is 8e-6 off.
        assert abs(float(gpt(tokens) - expected)) < 6e-7
        assert float(expected) > 1.0


def test_gpt_drops_in_training_only(torch):
    gpt, tokens = make_gpt(torch, dropout=0.1), tokens_of(torch)
    with torch.no_grad():
        assert gpt(tokens) != gpt(tokens)
        gpt.eval()
        assert gpt(tokens) == gpt(tokens)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("build", ["build_sdpa", "build_transformers"])
def test_peers_train(torch, build, dtype):
    if build == "build_transformers":
        pytest.importorskip("transformers")
    import torch_peers
    import train_step

    flags = train_step.parse(list(TINY))
    trainer = getattr(torch_peers, build)(flags, dtype, compiled=False)
    tokens = trainer.put(np.arange(32, dtype=np.int32).reshape(2, 16))
    losses = [float(trainer.step(tokens)) for _ in range(30)]
    assert abs(losses[0] - np.log(97)) < 0.5
    assert np.mean(losses[-3:]) < losses[0] - 0.2


def test_the_script_measures_our_step(run_script, tmp_path):
    flags = ("--variants=jax_f32", "--steps=1", "--rounds=2", "--warmup=1")
    path = tmp_path / "results.json"
    printed = run_script("train_step.py", *TINY, *flags, f"--output={path}")
    record = json.loads(path.read_text())
    result = record["results"]["jax_f32"]
    assert len(result["seconds"]) == 2
    assert 0 < result["min_seconds"] <= result["median_seconds"]
    assert result["tokens_per_second"] == pytest.approx(32 / result["median_seconds"])
    assert result["peak_bytes"] > 2**20
    assert record["settings"]["variants"] == ["jax_f32"]
    assert printed.splitlines()[2].startswith("| jax_f32 | ")
