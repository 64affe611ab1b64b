"""Machines to compile for: who stands in for them, and what they need."""

import argparse
import importlib.util
from types import SimpleNamespace

import jax
import pytest

from benchmarks.compiler import targets
from benchmarks.compiler.targets import TARGETS
from benchmarks.paper_model import pretrain_config
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.training.memory import accumulation_steps


@pytest.mark.parametrize("name, package", [("v5e-1", "libtpu"), ("h100x8", "cuda13")])
def test_a_missing_compiler_is_named_with_the_way_out(monkeypatch, name, package):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=rf"{package}.*: pip install"):
        targets.prepare(TARGETS[name])


@pytest.mark.parametrize("name, found", [("v5e-1", "libtpu"), ("h100-1", "cuda12")])
def test_one_of_the_compilers_is_enough(monkeypatch, name, found):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found in name or None)
    monkeypatch.setattr(targets, "_ENVIRONMENT", {})
    targets.prepare(TARGETS[name])


def test_the_package_is_told_the_targets_backend_and_memory():
    here = jax.default_backend(), devices.memory_bytes()
    with targets.in_place_of(TARGETS["v6e-8"]):
        assert jax.default_backend() == "tpu"
        assert devices.memory_bytes() == 32 * 10**9
    assert (jax.default_backend(), devices.memory_bytes()) == here


def test_a_batch_has_as_many_parts_as_on_the_target():
    config = pretrain_config(paper_flags(batch=64), "bfloat16")
    model = config.model.with_vocab_size(40478)
    parts = {}
    for name in ("v5e-1", "v6e-8"):
        with targets.in_place_of(TARGETS[name]):
            mesh = make_mesh(devices=jax.devices()[:1])
            parts[name] = accumulation_steps(
                config.train, config.optimizer, model, mesh
            )
    assert parts == {"v5e-1": 2, "v6e-8": 1}


def paper_flags(**values):
    sizes = dict(layers=12, embed_dim=768, seq_len=512, vocab_size=40478)
    return argparse.Namespace(**{**sizes, **values})


@pytest.mark.parametrize("name", [n for n, t in TARGETS.items() if t.chip])
def test_rates_of_products_are_those_of_the_package(monkeypatch, name):
    kinds = {"v5e": "TPU v5 lite", "v6e": "TPU v6 lite", "v5p": "TPU v5"}
    kind = kinds.get(name[:3], f"NVIDIA {name[:4].upper()}")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert TARGETS[name].chip.flops_per_second == devices.peak_flops()


def test_a_tpu_reaches_its_rate_in_whole_matrix_units():
    for name, units in (("v5e-1", 4 * 128**2), ("v6e-1", 4 * 256**2)):
        chip = TARGETS[name].chip
        at_the_clock = 2 * units * chip.cycles_per_second
        assert chip.flops_per_second == pytest.approx(at_the_clock, rel=0.01)
    for name in ("h100-1", "h200-1"):
        assert TARGETS[name].chip.cycles_per_second is None
