"""The files of checkpoints: saved steps, manifests, scores and shapes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from gpt1_jax.runs.checkpoint_files import (
    MANIFEST_FILE,
    SCORE_FILE,
    Best,
    Damaged,
    abstract_state,
    best_first,
    best_step,
    check_files,
    first_difference,
    manifest_digest,
    read_metadata,
    read_scores,
    saved_steps,
    state_bytes,
    write_manifest,
    write_score,
)
from gpt1_jax.training.state import TrainState


def test_the_saved_steps_are_in_order(tmp_path):
    assert saved_steps(epath.Path(tmp_path)) == []
    for name in ("10", "9", "100", "12.orbax-checkpoint-tmp-3", "\u00b2"):
        (tmp_path / "checkpoints" / name / "state").mkdir(parents=True)
    (tmp_path / "checkpoints/999").touch()
    (tmp_path / "checkpoints/1000").mkdir()
    assert saved_steps(epath.Path(tmp_path)) == [9, 10, 100, 1000]


def test_the_best_come_first_and_of_equals_the_earliest():
    scores = {4: 2.0, 1: 3.0, 3: 2.0, 2: 1.0}
    assert best_first(scores, highest=False) == [2, 3, 4, 1]
    assert best_first(scores, highest=True) == [1, 3, 4, 2]


def test_metadata_that_cannot_be_read_is_one_line(tmp_path):
    """`test_checkpoints` reads what orbax wrote."""
    with pytest.raises(ValueError, match=r"checkpoints/3/metadata/metadata cannot"):
        read_metadata(epath.Path(tmp_path), 3)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "array").write_bytes(bytes(1000))
    (tmp_path / "record").write_text("{}")
    (tmp_path / SCORE_FILE).write_text("may change")
    write_manifest(epath.Path(tmp_path))
    return epath.Path(tmp_path)


def test_a_whole_folder_has_no_damage(folder):
    check_files(folder)
    listed = json.loads((folder / MANIFEST_FILE).read_text())
    assert sorted(listed) == ["deep/array", "record"]


def test_what_is_left_out_may_change(folder):
    (folder / SCORE_FILE).write_text("changed")
    (folder / "new").write_text("new")
    check_files(folder)


def test_each_kind_of_damage_is_named(folder):
    (folder / "record").write_text("[]")
    with pytest.raises(Damaged, match="record differs from what was saved"):
        check_files(folder)
    (folder / "record").unlink()
    with pytest.raises(Damaged, match="record is missing"):
        check_files(folder)
    (folder / MANIFEST_FILE).unlink()
    with pytest.raises(Damaged, match=f"{MANIFEST_FILE} is missing"):
        check_files(folder)


def test_a_manifest_without_files_is_damage(folder):
    (folder / MANIFEST_FILE).write_text("{}")
    with pytest.raises(Damaged, match=f"{MANIFEST_FILE} lists no files"):
        check_files(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", "null", "3", "[" * 100_000])
def test_a_manifest_of_another_kind_is_damage(folder, text):
    (folder / MANIFEST_FILE).write_text(text)
    with pytest.raises(Damaged, match=f"{MANIFEST_FILE} cannot be read"):
        check_files(folder)


def test_the_fingerprint_changes_with_what_was_saved(folder, tmp_path):
    before = manifest_digest(folder)
    write_manifest(folder)
    assert manifest_digest(folder) == before != ""
    (folder / "record").write_text("[]")
    write_manifest(folder)
    assert manifest_digest(folder) != before
    (folder / MANIFEST_FILE).unlink()
    assert manifest_digest(folder) == ""


ACCURACY = Best("valid_accuracy", highest=True)


@pytest.fixture
def unscored(tmp_path):
    """A run unscored with steps 1, 2, 3 that nothing is known of."""
    for step in (1, 2, 3):
        (tmp_path / "checkpoints" / str(step) / "state").mkdir(parents=True)
    return epath.Path(tmp_path)


def test_scores_come_back_and_name_the_best_step(unscored):
    assert best_step(unscored) == 3
    for step, score in ((1, 0.5), (2, 0.75)):
        write_score(unscored / "checkpoints" / str(step), ACCURACY, score)
    scores = [read_scores(unscored, step) for step in (1, 2, 3)]
    assert scores == [{ACCURACY: 0.5}, {ACCURACY: 0.75}, {}]
    assert best_step(unscored) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace("0.5", '"0.5"'),
        lambda text: text.replace("true", "1"),
        lambda text: text.replace("metric", "metrics"),
        lambda text: '{"metric": 3, "highest": true, "value": 0.5}',
        lambda text: '{"metric": "a", "highest": true, "value": NaN}',
    ],
)
def test_a_damaged_score_is_refused_by_name(unscored, damage):
    write_score(unscored / "checkpoints" / "1", ACCURACY, 0.5)
    file = unscored / "checkpoints" / "1" / SCORE_FILE
    file.write_text(damage(file.read_text()))
    with pytest.raises(ValueError, match=r"1/score.json is damaged.*run the"):
        best_step(unscored)


def test_difference_names_the_first_array_that_is_not_as_wanted():
    found = {"a": np.zeros(3), "b": [np.zeros((2, 4)), np.zeros(())]}
    assert first_difference(found, found) is None
    wider = {"a": np.zeros(3), "b": [np.zeros((2, 5)), np.zeros(())]}
    assert first_difference(found, wider) == "b/0 of shape (2, 4), not (2, 5)"
    assert (
        first_difference(found, {"a": np.zeros(3)}) == "b/0 of shape (2, 4), not None"
    )
    assert first_difference({}, {"a": np.zeros(3)}) == "a of shape None, not (3,)"


def test_difference_compares_a_state_with_its_names_on_disk():
    state = TrainState(0, {"w": jnp.ones(2)}, ((), jnp.ones(3)), 0, 0)
    state = jax.tree.map(jnp.asarray, state)
    saved = {**state._asdict(), "opt_state": [None, np.zeros(3)]}
    assert first_difference(saved, state) is None


def test_abstract_state_is_placed():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    placed = abstract_state({"w": jnp.ones((2, 3))}, {"w": sharding})["w"]
    assert (placed.shape, placed.dtype) == ((2, 3), jnp.float32)
    assert placed.sharding == sharding


def test_the_size_of_a_state_is_known_from_its_shapes():
    state = {
        "w": jnp.ones((2, 3)),
        "step": jnp.int32(0),
        "half": jnp.ones(5, "bfloat16"),
    }
    assert (
        state_bytes(state) == state_bytes(jax.eval_shape(lambda: state)) == 24 + 4 + 10
    )
