"""Programs are lowered as the jobs would run them."""

import jax
import pytest

from benchmarks.compiler import compiled, programs

TINY = ("--layers=1", "--embed_dim=64", "--vocab_size=97", "--seq_len=32")


def parsed(*flags):
    return compiled.parse(["--target=cpu-8", *TINY, *flags])


def test_the_script_offers_every_program():
    assert tuple(programs.PROGRAMS) == compiled.CASES


def test_fine_tuning_splits_its_examples_over_all_devices():
    program = programs.finetune(parsed("--batch=16"), jax.devices())
    assert (program.devices, program.batch, program.parts) == (8, 16, 1)
    (_, batch, _), _ = program.lowered.args_info
    assert batch.tokens.shape == (16, 1, 32)
    assert batch.real_indices.shape == (8, 2 * 32), "no padding: all slots are taken"


def test_fine_tuning_on_race_has_four_texts_an_example():
    program = programs.PROGRAMS["finetune-race"](parsed(), jax.devices())
    (_, batch, _), _ = program.lowered.args_info
    assert batch.tokens.shape == (8, 4, 32)
    assert batch.real_indices.shape == (8, 4 * 32)
    assert batch.targets.shape == (8, 4)


@pytest.mark.parametrize(
    "flags, batch", [((), 64), (("--batch=16",), 16)], ids=["default", "flag"]
)
def test_the_batch_is_the_papers_unless_told(flags, batch):
    config, _ = programs._configured(parsed(*flags), batch=64, devices=8)
    assert config.train.batch_size == batch


def test_a_batch_has_a_sequence_for_each_device_of_a_pod():
    config, _ = programs._configured(parsed(), batch=64, devices=256)
    assert config.train.batch_size == 256


def test_decoding_keeps_its_cache_in_the_models_dtype(monkeypatch):
    """On a CPU it is float32: the program must be the accelerator's."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    program = programs.decode(parsed(), jax.devices())
    (_, state, *_), _ = program.lowered.args_info
    keys = state.cache.layers[0].keys
    assert keys.dtype == "bfloat16" and keys.shape == (8, 32, 64)
    assert program.devices == 1


@pytest.mark.parametrize("make", [programs.pretrain, programs.finetune])
def test_a_batch_that_devices_cannot_share_is_refused(make):
    with pytest.raises(
        ValueError, match=r"batch=12 must be .* 8 devices; use --batch=16"
    ):
        make(parsed("--batch=12"), jax.devices())
