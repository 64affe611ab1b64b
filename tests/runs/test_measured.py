"""Scores of saved steps, as this version and older ones noted them."""

import json

import pytest
from etils import epath

from gpt1_jax.runs import measured
from gpt1_jax.runs.saved_steps import LOWEST_LOSS, Best

ACCURACY = Best("valid_accuracy", highest=True)


@pytest.fixture
def folder(tmp_path):
    """A run folder with steps 1, 2, 3 that nothing is known of."""
    for step in (1, 2, 3):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    return epath.Path(tmp_path)


def test_scores_come_back_and_name_the_best_step(folder):
    assert measured.best_step(folder) == 3
    for step, score in ((1, 0.5), (2, 0.75)):
        measured.write(folder / "checkpoints" / str(step), ACCURACY, score)
    assert measured.read_scores(folder, "valid_accuracy") == {1: 0.5, 2: 0.75}
    assert measured.read_scores(folder, "valid_loss") == {}
    assert measured.best_step(folder) == 2


def test_the_scores_of_0_1_are_in_the_metadata(folder):
    for step, loss in ((1, 2.0), (3, 4.0)):
        place = folder / "checkpoints" / str(step) / "metadata"
        place.mkdir()
        (place / "metadata").write_text(json.dumps({"metrics": {"valid_loss": loss}}))
    assert measured.read_scores(folder, LOWEST_LOSS.metric) == {1: 2.0, 3: 4.0}
    assert measured.best_step(folder) == 1


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"metric": "a", "highest": 0}'])
def test_what_cannot_be_read_is_not_measured(folder, text):
    (folder / "checkpoints" / "1" / measured.MEASURED_FILE).write_text(text)
    assert measured.read_scores(folder, "a") == {}
    assert measured.best_step(folder) == 3
