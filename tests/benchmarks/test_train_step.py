"""The peers train the same model as the paper's, and the script measures a step."""

import jax
import numpy as np
import pytest
from tiny_models import observe

from gpt1_jax.model import language_model

SIZES = dict(vocab_size=97, max_seq_len=16, num_layers=2, num_heads=2, embed_dim=32)
TINY = ("--layers=1", "--embed_dim=64", "--vocab_size=97", "--seq_len=16", "--batch=2")


TOKENS = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (3, 16))


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def their_state(gpt):
    """The weights of `GPT` under the names of transformers' model."""
    modules = {"c_attn": "attn.c_attn", "attn_proj": "attn.c_proj"}
    modules |= {"c_fc": "mlp.c_fc", "mlp_proj": "mlp.c_proj"}
    modules |= {"ln_1": "ln_1", "ln_2": "ln_2"}
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
    from benchmarks.peers.torch_peers import GPT

    torch.manual_seed(0)
    gpt = GPT(**SIZES, mlp_dim=128, dropout=0.0).double()
    with torch.no_grad():
        for parameter in gpt.parameters():  # gains of 1 and biases of 0 hide mistakes
            parameter.add_(0.1 * torch.randn_like(parameter))
    sizes = dict(vocab_size=97, n_positions=16, n_layer=2, n_head=2, n_embd=32)
    config = transformers.OpenAIGPTConfig(**sizes)
    theirs = transformers.OpenAIGPTLMHeadModel(config).double().eval()
    theirs.load_state_dict(their_state(gpt))
    tokens = torch.from_numpy(TOKENS)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, labels=tokens).loss
        # Logits alone are rounded to float32. With the erf form of GELU it is 8e-6 off.
        assert abs(float(gpt(tokens) - expected)) < 6e-7
        assert float(expected) > 1.0


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("sdpa", "float32"), ("transformers", "bfloat16"), ("lstm", "float32")],
)
def test_peers_train(torch, name, dtype):
    if name == "transformers":
        pytest.importorskip("transformers")
    from benchmarks.peers import torch_peers, train_step

    flags = train_step.parse(list(TINY))
    build = getattr(torch_peers, f"build_{name}")
    trainer = build(flags, dtype, mode=None)
    tokens = trainer.put(np.arange(32, dtype=np.int32).reshape(2, 16))
    losses = [float(trainer.step(tokens)) for _ in range(30)]
    assert abs(losses[0] - np.log(97)) < 0.5
    assert np.mean(losses[-3:]) < losses[0] - 0.2


def test_the_lstm_is_the_one_that_we_train(torch, tiny_model_config):
    """With the same weights it has the same loss."""
    from benchmarks.peers.torch_peers import LSTM

    config = tiny_model_config(kind="lstm")
    params = jax.jit(language_model.init_params, static_argnums=0)(
        config, jax.random.key(0)
    )
    layer, theirs = params["h_0"]["lstm"], LSTM(97, 32, 24, dropout=0.0)
    assert theirs.lstm.bias_ih_l0.tolist() == layer["c_input"]["bias"].tolist()
    params["wte"] *= 8
    pairs = (
        (params["wte"], theirs.wte),
        (layer["c_proj"]["kernel"].T, theirs.projection),
    )
    with torch.no_grad():
        for array, module in pairs:
            module.weight.copy_(torch.from_numpy(np.array(array)))
        for name in ("input", "hidden"):
            weight = getattr(theirs.lstm, f"weight_{name[0]}h_l0")
            kernel = np.array(layer[f"c_{name}"]["kernel"]).T
            weight.copy_(torch.from_numpy(kernel))
    loss = theirs(torch.from_numpy(TOKENS)).item()
    assert loss == pytest.approx(float(observe(config, params, TOKENS).loss), abs=1e-5)


def test_the_lstm_is_compared_with_its_own_peers():
    from benchmarks.peers import train_step

    flags = train_step.parse([])
    assert not any("lstm" in name for name in flags.variants)
    names = ["torch_sdpa_f32_eager", "jax_f32", "torch_lstm_f32_eager", "jax_lstm_f32"]
    results = {
        name: {"dtype": "float32", "seconds": [seconds]}
        for name, seconds in zip(names, (4.0, 2.0, 9.0, 3.0), strict=True)
    }
    flags.device_peak = 1e12
    train_step.summarise(results, flags)
    ratios = [results[name]["speed_vs_best_torch"] for name in names]
    assert ratios == [1.0, 2.0, 1.0, 3.0]
    work = [results[name]["mfu"] * results[name]["median_seconds"] for name in names]
    assert work == pytest.approx([work[0], work[0], work[2], work[2]])
    assert work[2] / work[0] == pytest.approx(334_371_840 / 752_753_664)


@pytest.mark.slow
def test_the_script_measures_our_step(run_script):
    flags = ("--variants=jax_f32", "--steps=1", "--rounds=2", "--warmup=1")
    printed, record = run_script("peers.train_step", *TINY, *flags)
    result = record["results"]["jax_f32"]
    assert len(result["seconds"]) == 2
    assert 0 < result["min_seconds"] <= result["median_seconds"]
    assert result["tokens_per_second"] == pytest.approx(32 / result["median_seconds"])
    assert result["peak_bytes"] > 2**20
    assert record["settings"]["variants"] == ["jax_f32"]
    assert "\n| jax_f32 | " in printed
