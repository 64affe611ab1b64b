"""The files of checkpoints: saved steps, manifests, scores and shapes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from gpt1_jax.errors import UserError
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


@pytest.mark.parametrize("text", [None, "{", '{"config": 3}', '{"tokenizer": []}'])
def test_metadata_that_cannot_be_read_is_one_line(tmp_path, text):
    """`test_checkpoints` reads what orbax wrote."""
    file = tmp_path / "checkpoints/3/metadata/metadata"
    if text is not None:
        file.parent.mkdir(parents=True)
        file.write_text(text)
    with pytest.raises(UserError, match=r"3/metadata/metadata (cannot|has)"):
        read_metadata(epath.Path(tmp_path), 3)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "array").write_bytes(bytes(1000))
    (tmp_path / "record").write_text("{}")
    (tmp_path / SCORE_FILE).write_text("may change")
    write_manifest(epath.Path(tmp_path))
    return epath.Path(tmp_path)


def test_a_whole_folder_has_no_damage_and_what_is_not_listed_may_change(folder):
    check_files(folder)
    listed = json.loads((folder / MANIFEST_FILE).read_text())
    assert sorted(listed) == ["deep/array", "record"]
    (folder / SCORE_FILE).write_text("changed")
    (folder / "new").write_text("new")
    check_files(folder)


@pytest.mark.parametrize(
    ("name", "text", "damage"),
    [
        ("record", "[]", "record differs from what was saved"),
        ("record", None, "record is missing"),
        (MANIFEST_FILE, None, "manifest.json is missing"),
        (MANIFEST_FILE, "{}", "manifest.json lists no files"),
        *(
            (MANIFEST_FILE, text, "manifest.json cannot be read")
            for text in ("", "{", "[1]", "null", "3", "[" * 100_000)
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_each_kind_of_damage_is_named(folder, name, text, damage):
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(Damaged, match=f"^{damage}$"):
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
    "text",
    [
        *("{", "[]", "{}", '{"highest": true, "value": 0.5}'),
        '{"metric": 3, "highest": true, "value": 0.5}',
        '{"metric": "a", "highest": 1, "value": 0.5}',
        '{"metric": "a", "highest": true, "value": "0.5"}',
        '{"metric": "a", "highest": true, "value": NaN}',
    ],
)
def test_a_damaged_score_is_refused_by_name(unscored, text):
    (unscored / "checkpoints" / "1" / SCORE_FILE).write_text(text)
    with pytest.raises(UserError, match=r"1/score.json is damaged.*run the"):
        best_step(unscored)


@pytest.mark.parametrize(
    ("wanted", "difference"),
    [
        ({"a": np.zeros(3), "b": [np.zeros((2, 4)), np.zeros(())]}, None),
        (
            {"a": np.zeros(3), "b": [np.zeros((2, 5)), np.zeros(())]},
            "b/0 of shape (2, 4), not (2, 5)",
        ),
        ({"a": np.zeros(3)}, "b/0 of shape (2, 4), not None"),
        ({"A": np.zeros(3)}, "A of shape None, not (3,)"),
    ],
)
def test_difference_names_the_first_array_that_is_not_as_wanted(wanted, difference):
    found = {"a": np.zeros(3), "b": [np.zeros((2, 4)), np.zeros(())]}
    assert first_difference(found, wanted) == difference


def test_abstract_state_is_placed():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    placed = abstract_state({"w": jnp.ones((2, 3))}, {"w": sharding})["w"]
    assert (placed.shape, placed.dtype) == ((2, 3), jnp.float32)
    assert placed.sharding == sharding


def test_the_size_of_a_state_is_known_from_its_shapes():
    state = {"w": jnp.ones((2, 3)), "step": 1, "half": jnp.ones(5, "bfloat16")}
    shapes = jax.eval_shape(lambda: state | {"step": jnp.int32(0)})
    assert state_bytes(shapes) == 24 + 4 + 10
