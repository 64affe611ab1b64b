"""Which steps a run has saved, and which of them is meant."""

import pytest
from etils import epath

from gpt1_jax.runs.checkpoint_files import best_first, read_metadata, saved_steps


def test_the_saved_steps_are_in_order(tmp_path):
    assert saved_steps(epath.Path(tmp_path)) == []
    for name in ("10", "9", "100", "12.orbax-checkpoint-tmp-3", "\u00b2"):
        (tmp_path / "checkpoints" / name / "state").mkdir(parents=True)
    (tmp_path / "checkpoints/999").touch()
    (tmp_path / "checkpoints/1000").mkdir()
    assert saved_steps(epath.Path(tmp_path)) == [9, 10, 100]


def test_the_best_come_first_and_of_equals_the_earliest():
    scores = {4: 2.0, 1: 3.0, 3: 2.0, 2: 1.0}
    assert best_first(scores, highest=False) == [2, 3, 4, 1]
    assert best_first(scores, highest=True) == [1, 3, 4, 2]


def test_metadata_that_cannot_be_read_is_one_line(tmp_path):
    """`test_checkpoints` reads what orbax wrote."""
    with pytest.raises(ValueError, match=r"checkpoints/3/metadata/metadata cannot"):
        read_metadata(epath.Path(tmp_path), 3)
