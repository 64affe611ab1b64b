"""The script measures generation; its peers add the tokens asked for."""

import numpy as np
import pytest

from benchmarks.peers import generate

TINY = ("--layers=1", "--embed_dim=64", "--vocab_size=97", "--seq_len=64", "--batch=2")
SHORT = ("--prompt_tokens=5", "--new_tokens=12", "--rounds=2")


@pytest.mark.parametrize("architecture", ["openai_gpt", "gpt2"])
def test_peers_generate(architecture):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.peers import torch_peers

    flags = generate.parse([*TINY, *SHORT])
    trainer = torch_peers.build_generator(flags, "float32", architecture=architecture)
    prompts, number = trainer.put((np.ones((2, 5), np.int32), 4))
    assert isinstance(prompts, torch.Tensor) and number == 4
    assert trainer.step((prompts, number)) >= 0


@pytest.mark.slow
def test_the_script_measures_our_generation(run_script):
    flags = (*TINY, *SHORT, "--variants=jax_f32")
    printed, record = run_script("peers.generate", *flags)
    result = record["results"]["jax_f32"]
    assert len(result["seconds"]) == 2
    per_token = result["median_seconds"] / 12
    assert result["tokens_per_second"] == pytest.approx(2 / per_token)
    assert result["milliseconds_per_token"] == pytest.approx(1e3 * per_token)
    assert 0 < result["bandwidth_share"] < 1
    assert "\n| jax_f32 | " in printed
