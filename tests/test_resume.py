"""A checkpoint resumes on other devices than those that saved it."""

import pytest
from resume_matrix import distance, resume, train
from tiny_run import tiny_overrides


@pytest.fixture(scope="module")
def overrides(corpus_dir):
    return tiny_overrides(corpus_dir)


@pytest.fixture(scope="module")
def alone(overrides, made_once):
    """An uninterrupted run on one device."""
    cell = ("1 device", "replicated")
    return made_once("alone", lambda folder: train(folder, cell, overrides))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        (("2 processes", "full"), ("8 devices", "replicated")),
        (("8 devices", "full"), ("1 device", "replicated")),
    ],
    ids=str,
)
def test_a_run_resumes_on_other_devices(saved, resumed, overrides, alone, tmp_path):
    """As if it had never been interrupted: losses and parameters, to rounding."""
    train(tmp_path / "saved", saved, overrides)
    resume(tmp_path / "saved", tmp_path / "resumed", resumed, overrides)
    for folder in ("saved", "resumed"):
        loss, array = distance(alone, tmp_path / folder)
        assert loss < 1e-5 and array < 1e-5
