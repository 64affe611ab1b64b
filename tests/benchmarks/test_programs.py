"""Programs are lowered as the jobs would run them."""

import jax
import pytest

from benchmarks.compiler import compiled, programs

TINY = ("--layers=1", "--embed_dim=64", "--vocab_size=97", "--seq_len=32")


def parsed(*flags):
    return compiled.parse(["--target=cpu-8", *TINY, *flags])


@pytest.mark.parametrize(
    ("name", "flags", "examples", "texts"),
    [("finetune", ["--batch=16"], 16, 1), ("finetune-race", [], 8, 4)],
)
def test_fine_tuning_splits_its_examples_over_all_devices(name, flags, examples, texts):
    program = programs.PROGRAMS[name](parsed(*flags), jax.devices())
    assert (program.devices, program.batch, program.parts) == (8, examples, 1)
    (_, batch, _), _ = program.lowered.args_info
    assert batch.tokens.shape == (examples, texts, 32)
    slots = examples // 8 * texts * 32  # no padding: all are taken
    assert batch.real_indices.shape == (8, slots)


def test_decoding_keeps_its_cache_in_the_models_dtype(monkeypatch):
    """On a CPU it is float32: the program must be the accelerator's."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    program = programs.decode(parsed(), jax.devices())
    (_, state, *_), _ = program.lowered.args_info
    keys = state.cache.layers[0].keys
    assert keys.dtype == "bfloat16" and keys.shape == (8, 32, 64)
    assert program.devices == 1
