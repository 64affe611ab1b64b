"""The files of checkpoints: saved steps, manifests, scores and shapes."""

import json

import pytest
from etils import epath

from gpt1_jax.errors import UserError
from gpt1_jax.runs.checkpoint_files import (
    MANIFEST_FILE,
    SCORE_FILE,
    Best,
    Damaged,
    best_step,
    check_files,
    manifest_digest,
    read_metadata,
    read_scores,
    saved_steps,
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


@pytest.mark.parametrize("text", [None, "{", '{"config": 3}'])
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


@pytest.mark.parametrize(
    ("name", "text", "damage"),
    [
        ("record", "[]", "record differs from what was saved"),
        ("record", None, "record is missing"),
        (MANIFEST_FILE, None, "manifest.json is missing"),
        (MANIFEST_FILE, "{}", "manifest.json lists no files"),
        *(
            (MANIFEST_FILE, text, "manifest.json cannot be read")
            for text in ("{", "[1]", "[" * 100_000)
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


def test_what_is_listed_may_not_change_and_has_a_fingerprint(folder):
    check_files(folder)
    listed = json.loads((folder / MANIFEST_FILE).read_text())
    assert sorted(listed) == ["deep/array", "record"]
    before = manifest_digest(folder)
    for other in (SCORE_FILE, "new"):
        (folder / other).write_text("changed")
    check_files(folder)
    write_manifest(folder)
    listed = json.loads((folder / MANIFEST_FILE).read_text())
    assert sorted(listed) == ["deep/array", "new", "record"]
    assert manifest_digest(folder) != before != ""
    (folder / MANIFEST_FILE).unlink()
    assert manifest_digest(folder) == ""


def test_scores_come_back_and_name_the_best_step(tmp_path):
    for step in (1, 2, 3):
        (tmp_path / "checkpoints" / str(step) / "state").mkdir(parents=True)
    run = epath.Path(tmp_path)
    assert best_step(run) == 3, "without scores the newest"
    accuracy = Best("valid_accuracy", highest=True)
    for step, score in ((1, 0.5), (2, 0.75)):
        write_score(run / "checkpoints" / str(step), accuracy, score)
    scores = [read_scores(run, step) for step in (1, 2, 3)]
    assert scores == [{accuracy: 0.5}, {accuracy: 0.75}, {}]
    assert best_step(run) == 2


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "{}"),
        '{"metric": 3, "highest": true, "value": 0.5}',
        '{"metric": "a", "highest": true, "value": "0.5"}',
        '{"metric": "a", "highest": true, "value": NaN}',
    ],
)
def test_a_damaged_score_is_refused_by_name(tmp_path, text):
    (tmp_path / "checkpoints" / "1" / "state").mkdir(parents=True)
    (tmp_path / "checkpoints" / "1" / SCORE_FILE).write_text(text)
    with pytest.raises(UserError, match=r"1/score.json is damaged.*run the"):
        best_step(epath.Path(tmp_path))
