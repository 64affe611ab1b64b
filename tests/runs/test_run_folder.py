"""Runs read back from their folders, and the search for them."""

import json

import pytest
from etils import epath
from made_up_runs import (
    RECORDS,
    SESSION,
    write_finished,
    write_json,
    write_pretrained,
)

from gpt1_jax.config.checks import NEWEST
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.pretrained import Pretrained, read_pretrained, tokens_before
from gpt1_jax.runs.run_folder import RunFolder, find_folders, find_runs
from gpt1_jax.runs.saved_steps import find_steps
from gpt1_jax.runs.wall_time import TRAINING


def read(folder):
    return read_pretrained(epath.Path(folder))


def find_pretrained(folder):
    """As a report does."""
    return [run for each in find_folders(epath.Path(folder)) if (run := read(each))]


def test_a_run_is_what_its_files_say(tmp_path):
    run = read(write_pretrained(tmp_path / "a"))
    assert (run.step, run.num_steps, run.tokens_per_step) == (8, 8, 1024)
    assert run.model.vocab_size == 500 and run.corpus_tokens == 4096
    assert run.series("valid_loss") == ([4, 8], [6.25, 5.125])
    assert run.last("valid_loss") == 5.125 and run.last("grad_norm") is None
    assert run.sample() == "it was a\nsecond line"
    assert run.seconds() == (90.0, 120.0)


def test_each_file_is_read_once_and_only_when_it_is_asked_for(tmp_path):
    run = Pretrained(epath.Path(write_pretrained(tmp_path / "a")))
    (run.folder / "sessions.json").write_text("{")
    assert (run.job, run.last("valid_loss")) == ("pretrain", 5.125)
    (run.folder / "metrics.jsonl").unlink()
    assert run.last("valid_loss") == 5.125
    with pytest.raises(ValueError, match=r"sessions\.json"):
        run.seconds()


def test_a_fine_tuned_run_is_read_alike(finetuned):
    run = RunFolder(epath.Path(finetuned))
    opened = open_run(str(finetuned))
    assert (run.job, run.config, run.model) == ("finetune", opened.config, opened.model)
    assert run.tokenizer.digest == opened.tokenizer.digest
    assert run.results["best_step"] == opened.step in run.saved
    assert run.records[-1]["step"] == 12 == run.sessions[-1]["last_step"]


def test_a_folder_without_a_run_has_no_job_and_no_results(tmp_path):
    write_json(tmp_path / "exported" / "config.json", {"model_type": "openai-gpt"})
    for name in ("exported", "nothing"):
        run = RunFolder(epath.Path(tmp_path / name))
        assert (run.job, run.results, run.saved) == ("", None, [])


def test_runs_near_a_folder_are_found_to_be_named(tmp_path):
    for name in ("a/b/c", "a/b/c2/d", "e/checkpoints/f"):
        write_pretrained(tmp_path / name)
    found = [
        str(run.folder.relative_to(tmp_path)) for run in find_runs(epath.Path(tmp_path))
    ]
    assert found == ["a/b/c"]
    assert find_runs(epath.Path(tmp_path / "no/such")) == []
    assert find_runs(epath.Path("gs://bucket/runs")) == []


def test_sessions_add_up_and_the_last_one_knows_the_text(tmp_path):
    second = {**SESSION, "seconds": {TRAINING: 10.0}, "text": {"tokens": 5000}}
    run = read(write_pretrained(tmp_path / "a", sessions=(SESSION, second)))
    assert run.seconds() == (100.0, 130.0) and run.corpus_tokens == 5000


def test_updates_follow_from_epochs_and_the_size_of_the_text(tmp_path):
    epochs = {"train__num_steps": 0, "train__num_epochs": 2.0}
    known = read(write_pretrained(tmp_path / "a", **epochs))
    assert known.num_steps == 2 * 31 // 8  # 4,096 tokens in windows of 128
    unknown = read(write_pretrained(tmp_path / "b", sessions=(), **epochs))
    assert unknown.num_steps is None


def test_a_run_that_has_just_begun_has_no_sessions(tmp_path):
    run = read(write_pretrained(tmp_path / "a", sessions=()))
    assert run.seconds() is None and run.corpus_tokens is None


def test_records_without_finite_numbers_are_left_out(tmp_path):
    odd = [*RECORDS, {"step": 9, "loss": "5"}, {"step": 10, "loss": float("nan")}]
    odd += [{"step": 10, "loss": None}, {"step": 10, "loss": 10**400}]
    run = read(write_pretrained(tmp_path / "a", records=odd))
    assert run.series("loss") == ([4, 8], [6.5, 5.5])


@pytest.mark.parametrize(
    ("saved", "records", "step"),
    [((2,), (), 2), ((8, 74), RECORDS, 74), ((4,), RECORDS, 4), ((), RECORDS, 8)],
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


def test_runs_are_found_at_any_depth_and_nothing_else(tmp_path):
    write_pretrained(tmp_path / "x" / "a")
    write_pretrained(tmp_path / "b")
    write_finished(tmp_path / "finetuned")
    write_json(tmp_path / "exported" / "config.json", {"model_type": "openai-gpt"})
    found = find_pretrained(tmp_path)
    assert [run.folder.name for run in found] == ["b", "a"]
    alone = find_pretrained(tmp_path / "b")
    assert [run.folder.name for run in alone] == ["b"]


def test_a_run_of_the_program_is_read(pretrained_folder):
    run = read(pretrained_folder)
    assert run.step == 12 == run.num_steps
    training, total = run.seconds()
    assert 0 < training < total
    assert run.corpus_tokens > 1000 and run.sessions[-1]["last_step"] == 12
    tokenizer = json.loads((pretrained_folder / "tokenizer/tokenizer.json").read_text())
    assert run.model.vocab_size == tokenizer["vocab_size"]


@pytest.fixture
def pretrained_folder(request):
    return request.getfixturevalue("pretrained")


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "sessions.json"])
def test_damaged_files_are_named(tmp_path, name):
    folder = write_pretrained(tmp_path / "a")
    (folder / name).write_text("{\n{\n")
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read(folder)


def names(root):
    return [str(path.relative_to(root)) for path in find_folders(epath.Path(root))]


def test_all_folders_are_found_in_order_but_parts_of_runs(tmp_path):
    for name in ("b/c", "a", "b/checkpoints/8", "b/predictions/all", ".hidden/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    assert names(tmp_path) == [".", "a", "b", "b/c"]


def test_links_are_followed_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert names(tmp_path) == [".", "a"]


def save(folder, metadata):
    """What is read of saved steps: what was saved beside their states."""
    for step, values in metadata.items():
        saved = folder / "checkpoints" / str(step) / "metadata"
        saved.mkdir(parents=True)
        write_json(epath.Path(saved) / "metadata", values)


def test_all_steps_or_the_milestones_may_be_meant(tmp_path):
    empty, folder = (RunFolder(epath.Path(tmp_path)) for _ in range(2))
    assert find_steps(empty, "all") == find_steps(empty, "milestones") == [NEWEST]
    kept = {step: {"milestone": {"amount": step, "unit": "steps"}} for step in (10, 4)}
    save(tmp_path, {**kept, 9: {}})
    assert find_steps(folder, "all") == [4, 9, 10]
    assert find_steps(folder, "milestones") == [4, 10]
    save(tmp_path, {12: {}})
    folder = RunFolder(epath.Path(tmp_path))
    assert find_steps(folder, "milestones") == [4, 10, 12]
    assert find_steps(folder, "milestones", named=True) == [4, 10]
    assert find_steps(folder, "best") == ["best"] and find_steps(folder, "10") == ["10"]


def test_a_run_that_kept_no_step_is_refused_by_name(tmp_path):
    save(tmp_path, {3: {}, 12: {}})
    with pytest.raises(FileNotFoundError) as error:
        find_steps(RunFolder(epath.Path(tmp_path)), "milestones")
    assert str(error.value).startswith(f"{tmp_path} holds no milestone")
    assert "keep them); its saved steps are [3, 12]" in str(error.value)
