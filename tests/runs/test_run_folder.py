"""Runs read back from their folders, and the search for them."""

import pytest
from etils import epath
from made_up_runs import (
    RECORDS,
    SESSION,
    write_json,
    write_pretrained,
)

from gpt1_jax.config.checks import NEWEST
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.pretrained import read_pretrained, tokens_before
from gpt1_jax.runs.run_folder import RunFolder, find_folders
from gpt1_jax.runs.saved_steps import find_steps
from gpt1_jax.runs.wall_time import TRAINING


def read(folder):
    return read_pretrained(epath.Path(folder))


def test_a_run_is_what_its_files_say(tmp_path):
    """Sessions add up, and the last one knows the text; odd records are left out."""
    second = {**SESSION, "seconds": {TRAINING: 10.0}, "text": {"tokens": 5000}}
    odd = ("5", float("nan"), None, 10**400)
    records = [*RECORDS, *({"step": 8, "loss": loss} for loss in odd)]
    run = read(write_pretrained(tmp_path / "a", records, sessions=(SESSION, second)))
    assert (run.step, run.num_steps, run.tokens_per_step) == (8, 8, 1024)
    assert run.model.vocab_size == 500 and run.corpus_tokens == 5000
    assert run.series("loss") == ([4, 8], [6.5, 5.5])
    assert run.last("valid_loss") == 5.125 and run.last("grad_norm") is None
    assert run.sample() == "it was a\nsecond line"
    assert run.seconds() == (100.0, 130.0)


def test_runs_of_the_program_are_read(pretrained, finetuned):
    run = read(pretrained)
    assert run.step == 12 == run.num_steps == run.sessions[-1]["last_step"]
    training, total = run.seconds()
    assert 0 < training < total and run.corpus_tokens > 1000
    for folder in (pretrained, finetuned):
        run, opened = RunFolder(epath.Path(folder)), open_run(str(folder))
        assert (run.job, run.model) == (opened.config.job, opened.model)
        assert run.config == opened.config and opened.step in run.saved
        assert run.tokenizer.digest == opened.tokenizer.digest
        assert run.records[-1]["step"] == 12 == run.sessions[-1]["last_step"]
    assert run.results["best_step"] == opened.step


def test_updates_follow_from_epochs_and_the_size_of_the_text(tmp_path):
    """Which a run that has just begun does not know."""
    epochs = {"train__num_steps": 0, "train__num_epochs": 2.0}
    known = read(write_pretrained(tmp_path / "a", **epochs))
    assert known.num_steps == 2 * 31 // 8  # 4,096 tokens in windows of 128
    begun = read(write_pretrained(tmp_path / "b", sessions=(), **epochs))
    assert begun.num_steps is begun.seconds() is begun.corpus_tokens is None


@pytest.mark.parametrize(
    ("saved", "records", "step"),
    [((8, 74), RECORDS, 74), ((4,), RECORDS, 4), ((), RECORDS, 8)],
)
def test_a_run_is_counted_up_to_its_newest_save(tmp_path, saved, records, step):
    run = read(write_pretrained(tmp_path / "a", records=records, saved=saved))
    assert (run.step, run.tokens) == (step, step * 1024)


def test_tokens_of_the_runs_before_are_counted(tmp_path):
    """At the step that was named or the newest, as far back as runs are known."""

    def begun_from(name, source, **how):
        folder = write_pretrained(tmp_path / name, init_from=str(source), **how)
        return read(folder)

    first = read(write_pretrained(tmp_path / "first"))
    second = begun_from("second", first.folder, step="4")
    third = begun_from("third", second.folder)
    counted = begun_from("counted", first.folder, init_optimizer=True)
    longer = begun_from("longer", second.folder, init_optimizer=True)
    known = [first, second, third, counted, longer]
    before = [tokens_before(run, known) for run in known]
    assert before == [0, 4 * 1024, (8 + 4) * 1024, 0, 4 * 1024]
    assert tokens_before(third, [second]) == 8 * 1024
    assert tokens_before(third, []) == 0
    afar = begun_from("afar", "hf://who/knows")
    assert tokens_before(afar, known) == 0
    ring = [begun_from("x", tmp_path / "y"), begun_from("y", tmp_path / "x")]
    assert tokens_before(ring[0], ring) == 2 * 8 * 1024


def test_all_folders_are_found_in_order_but_parts_of_runs(tmp_path):
    """Links are followed once."""
    for name in ("b/c", "a", "b/checkpoints/8", "b/predictions/all", ".hidden/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "d").symlink_to(tmp_path / "b")
    found = find_folders(epath.Path(tmp_path))
    assert [str(path.relative_to(tmp_path)) for path in found] == [".", "a", "b", "b/c"]
    write_json(tmp_path / "a" / "config.json", {"model_type": "openai-gpt"})
    for name in ("a", "nothing"):
        run = RunFolder(epath.Path(tmp_path / name))
        assert (run.job, run.results, run.saved) == ("", None, [])


def test_all_steps_or_the_milestones_may_be_meant(tmp_path):
    def save(step, **metadata):
        """What is read of a saved step: what was saved beside its state."""
        place = tmp_path / "checkpoints" / str(step) / "metadata" / "metadata"
        write_json(place, metadata)

    def found(*step, **named):
        return find_steps(RunFolder(epath.Path(tmp_path)), *step, **named)

    assert found("all") == found("milestones") == [NEWEST]
    save(9)
    with pytest.raises(FileNotFoundError, match=r"keep them\); its saved .* are \[9\]"):
        found("milestones")
    for step in (10, 4):
        save(step, milestone={"amount": step, "unit": "steps"})
    assert found("all") == [4, 9, 10]
    assert found("milestones") == [4, 10]
    save(12)
    assert found("milestones") == [4, 10, 12]
    assert found("milestones", named=True) == [4, 10]
    assert found("best") == ["best"] and found("10") == ["10"]
