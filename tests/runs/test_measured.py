"""Scores of saved steps, as this version and older ones noted them."""

import json

import pytest
from etils import epath

from gpt1_jax.runs.checkpoint_files import (
    LOWEST_LOSS,
    MEASURED_FILE,
    Best,
    best_step,
    read_scores,
    write_score,
)

ACCURACY = Best("valid_accuracy", highest=True)


@pytest.fixture
def folder(tmp_path):
    """A run folder with steps 1, 2, 3 that nothing is known of."""
    for step in (1, 2, 3):
        (tmp_path / "checkpoints" / str(step) / "state").mkdir(parents=True)
    return epath.Path(tmp_path)


def test_scores_come_back_and_name_the_best_step(folder):
    assert best_step(folder) == 3
    for step, score in ((1, 0.5), (2, 0.75)):
        write_score(folder / "checkpoints" / str(step), ACCURACY, score)
    scores = [read_scores(folder, step) for step in (1, 2, 3)]
    assert scores == [{ACCURACY: 0.5}, {ACCURACY: 0.75}, {}]
    assert best_step(folder) == 2


def test_the_scores_of_0_1_are_in_the_metadata(folder):
    for step, loss in ((1, 2.0), (3, 4.0)):
        place = folder / "checkpoints" / str(step) / "metadata"
        place.mkdir()
        (place / "metadata").write_text(json.dumps({"metrics": {"valid_loss": loss}}))
    scores = [read_scores(folder, step) for step in (1, 2, 3)]
    assert scores == [{LOWEST_LOSS: 2.0}, {}, {LOWEST_LOSS: 4.0}]
    assert best_step(folder) == 1


def test_a_file_of_before_has_no_checksum_and_is_read(folder):
    file = folder / "checkpoints" / "1" / MEASURED_FILE
    file.write_text('{"metric": "valid_accuracy", "highest": true, "value": 0.5}')
    assert best_step(folder) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace("0.5", "0.7"),
        lambda text: text.replace("true", "false"),
        lambda text: text.replace("accuracy", "accurady"),
        lambda text: '{"metric": 3, "highest": true, "value": 0.5}',
        lambda text: '{"metric": "a", "highest": true, "value": NaN}',
    ],
)
def test_a_damaged_score_is_refused_by_name(folder, damage):
    write_score(folder / "checkpoints" / "1", ACCURACY, 0.5)
    file = folder / "checkpoints" / "1" / MEASURED_FILE
    file.write_text(damage(file.read_text()))
    with pytest.raises(ValueError, match=r"1/measured.json is damaged.*run the"):
        best_step(folder)
