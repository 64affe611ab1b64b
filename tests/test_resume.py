"""A checkpoint resumes on other devices than those that saved it."""

import shutil

import numpy as np
import pytest
from joined import together
from tiny_run import (
    as_flags,
    metrics_without_times,
    run_program,
    saved_state,
    tiny_overrides,
)

# A program on a number of the CPU's devices, where JAX is imported already.
ON_DEVICES = """
import jax
jax.config.update("jax_num_cpu_devices", {})
from gpt1_jax import program
program.run()
"""
PLACES = {"1 device": (1, 1), "2 processes": (2, 4), "8 devices": (1, 8)}


@pytest.fixture(scope="module")
def train(corpus_dir):
    """Takes a tiny run to its end on some devices; returns what it printed."""

    def train(folder, place, sharding="auto"):
        processes, devices = PLACES[place]
        more = {"mesh.sharding": sharding, "optimizer.eps": 1e-4}
        flags = as_flags(tiny_overrides(corpus_dir) | more)

        def start(variables):
            return run_program(
                "--config=configs/pretrain.py:quickstart",
                f"--workdir={folder}",
                *flags,
                env={"NPROC": "16", **variables},
                program=("-c", ON_DEVICES.format(devices)),
            )

        results = together(start, processes)
        assert [code for code, _ in results] == [0] * processes, results
        return results[0][1]

    return train


def losses(folder):
    records = metrics_without_times(folder)
    return [x[key] for x in records for key in ("loss", "valid_loss") if key in x]


@pytest.mark.slow
def test_a_run_resumes_on_other_devices(train, tmp_path):
    """As if it had never been interrupted: losses and parameters, to rounding."""
    train(tmp_path / "alone", "1 device")
    expected = saved_state(tmp_path / "alone", 12)
    for saved, resumed in (("2 processes", "8 devices"), ("8 devices", "1 device")):
        train(tmp_path / saved, saved, sharding="full")
        folder = shutil.copytree(tmp_path / saved, tmp_path / f"{saved}, {resumed}")
        shutil.rmtree(folder / "checkpoints/12")
        assert "Resuming from the checkpoint of step 8." in train(folder, resumed)
        for each in (tmp_path / saved, folder):
            found = losses(tmp_path / "alone"), losses(each)
            np.testing.assert_allclose(*found, rtol=0, atol=1e-5)
            for name, array in saved_state(each, 12).items():
                np.testing.assert_allclose(array, expected[name], atol=1e-5, rtol=0)
