"""Runs read back from their folders, and the search for them."""

import dataclasses
import json
import shutil

import pytest
from etils import epath
from made_up_runs import (
    RECORDS,
    SESSION,
    SIZES,
    finished_result,
    write_finished,
    write_json,
    write_pretrained,
)
from tiny_run import load_config
from tiny_tasks import write_lines

from gpt1_jax.errors import UserError
from gpt1_jax.runs import past_runs
from gpt1_jax.runs.past_runs import find_folders, read_babylm_predictions
from gpt1_jax.runs.wall_time import TRAINING
from gpt1_jax.tasks.metrics import METRICS


def read(folder):
    return past_runs.read_pretrained(epath.Path(folder))


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


def test_folders_of_older_versions_have_no_sessions(tmp_path):
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
    before = [past_runs.tokens_before(run, known) for run in known]
    assert before == [0, 4 * 1024, (8 + 4) * 1024, 0, 4 * 1024]
    assert past_runs.tokens_before(third, [second]) == 8 * 1024
    assert past_runs.tokens_before(third, []) == 0
    afar = begun_from("afar", "hf://who/knows")
    assert past_runs.tokens_before(afar, known) == 0
    ring = [begun_from("x", tmp_path / "y"), begun_from("y", tmp_path / "x")]
    assert past_runs.tokens_before(ring[0], ring) == 2 * 8 * 1024


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


def write_run(folder, results=True, **overrides):
    """The files that are read of a run."""
    folder.mkdir(parents=True)
    config = load_config("sst2", file="finetune", init_from="run", **overrides)
    values = config.to_dict()
    values["model"] |= SIZES
    (folder / "config.json").write_text(json.dumps(values))
    if results:
        result = finished_result("sst2", 0.5)
        (folder / "results.json").write_text(json.dumps(result))
    return epath.Path(folder)


def find_finished(folder):
    """As a report does."""
    found = (past_runs.read_finished(each) for each in find_folders(epath.Path(folder)))
    return [run for run in found if run]


def test_a_finished_run_says_what_it_was_and_its_scores(finetuned):
    run = past_runs.read_finished(epath.Path(finetuned))
    assert run.folder == epath.Path(finetuned)
    assert (run.config.tasks, run.config.seeds) == (("sst2",), (0,))
    assert run.result == json.loads((finetuned / "results.json").read_text())
    assert (run.kind, run.layers_transferred, run.is_whole) == ("transformer", 1, True)


@pytest.mark.parametrize(
    ("model", "named", "layers", "whole"),
    [
        ({"kind": "transformer", "num_layers": 3}, "all", 3, True),
        ({"kind": "transformer", "num_layers": 3}, "3", 3, True),
        ({"kind": "transformer", "num_layers": 3}, "0", 0, False),
        ({"kind": "transformer", "num_layers": 3}, "none", -1, False),
        ({"kind": "lstm", "num_layers": 3}, "all", 1, True),
        ({"kind": "lstm", "num_layers": 3}, "1", 1, True),
    ],
)
def test_a_run_says_how_much_was_transferred(finetuned, model, named, layers, whole):
    run = past_runs.read_finished(epath.Path(finetuned))
    config = dataclasses.replace(
        run.config,
        model=dataclasses.replace(run.config.model, **model),
        transfer_layers=named,
    )
    run = run._replace(config=config)
    assert (run.kind, run.layers_transferred) == (model["kind"], layers)
    assert run.is_whole == whole


def test_what_is_no_finished_fine_tuned_run_is_none(pretrained, tmp_path):
    assert past_runs.read_finished(epath.Path(tmp_path / "nothing")) is None
    assert past_runs.read_finished(epath.Path(pretrained)) is None
    assert past_runs.read_finished(write_run(tmp_path / "began", results=False)) is None
    other = shutil.copytree(pretrained, tmp_path / "other")
    (other / "results.json").write_text("{}")  # as zero-shot evaluation writes them
    assert past_runs.read_finished(epath.Path(other)) is None
    (other / "config.json").unlink()
    assert past_runs.read_finished(epath.Path(other)) is None


def test_runs_are_found_at_any_depth_sorted(tmp_path):
    for name in ("b/c", "a/rte/full-seed0"):
        write_run(tmp_path / "runs" / "x" / name)
    write_run(tmp_path / "runs" / "began", results=False)
    found = find_finished(tmp_path / "runs")
    names = [str(run.folder.relative_to(tmp_path / "runs")) for run in found]
    assert names == ["x/a/rte/full-seed0", "x/b/c"]
    (alone,) = find_finished(tmp_path / "runs" / "x" / "b" / "c")
    assert alone == found[1]


def test_a_damaged_file_is_named(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "results.json").write_text("{")
    with pytest.raises(ValueError, match=r"run/results\.json cannot be read"):
        find_finished(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("dev", None),
        ("dev", {"n": 40}),
        ("dev/n", "40"),
        ("dev/accuracy", {"": {}}),
        ("dev/accuracy", -0.5),
        ("dev/spearman", -1.5),
        ("dev/mse", float("inf")),
        ("dev/mse", 10**400),
        ("majority/accuracy", "0.5"),
        ("majority/accuracy", True),
        ("dev/subsets", []),
        ("dev/subsets", {"matched": {"n": 3}}),
        ("test", [1]),
        ("train_examples", "64"),
        ("init_step", -1),
        ("content_digests", ["a"]),
        ("content_digests", {"dev examples": 1}),
    ],
)
def test_scores_of_another_kind_are_named(tmp_path, monkeypatch, place, value):
    monkeypatch.setitem(METRICS, "mse", lambda p, y: 1.0)  # without a range
    folder = write_run(tmp_path / "run")
    results = finished_result("sst2", 0.5)
    *section, key = place.split("/")
    (results[section[0]] if section else results)[key] = value
    (folder / "results.json").write_text(json.dumps(results))
    with pytest.raises(UserError, match=r"run/results\.json holds .*damaged"):
        find_finished(tmp_path)


@pytest.mark.parametrize(
    ("metric", "value"), [("mse", 42.0), ("mse", -1e9), ("spearman", None)]
)
def test_scores_of_a_metrics_own_range_are_read(tmp_path, monkeypatch, metric, value):
    monkeypatch.setitem(METRICS, "mse", lambda p, y: 1.0)
    folder = write_run(tmp_path / "run")
    results = finished_result("sst2", 0.5)
    results["dev"][metric] = value
    (folder / "results.json").write_text(json.dumps(results))
    assert find_finished(tmp_path)[0].result == results


def test_a_test_split_without_labels_has_no_scores(tmp_path):
    folder = write_run(tmp_path / "run")
    results = finished_result("sst2", 0.5, test={"n": 9, "scores": None})
    (folder / "results.json").write_text(json.dumps(results))
    assert find_finished(tmp_path)[0].result == results


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


# --- predictions for BabyLM -----------------------------------------------------

NAMES = ("entailment", "not_entailment")
NUMBERS = [1, 0, 0, 1, 1]


def write_babylm_run(folder, task="rte", numbers=NUMBERS, **overrides):
    """A finished run on BabyLM's data, with its predictions."""
    given = {"data__dir": "data", "tasks": (task,), **overrides}
    result = finished_result(task, 0.5)
    result["dev"]["n"] = len(NUMBERS)
    write_finished(folder, "babylm", result=result, **given)
    lines = [{"id": "9", "prediction": NAMES[number]} for number in numbers]
    write_lines(folder / "predictions" / "dev.jsonl", lines)
    return epath.Path(folder)


def test_predictions_of_a_run_and_of_all_below_a_folder(tmp_path, caplog):
    one = write_babylm_run(tmp_path / "runs/babylm/rte/pretrained-seed42")
    assert read_babylm_predictions(one) == {"rte": NUMBERS}
    assert "holds 5 predictions, and BabyLM wants all 139" in caplog.text
    other = tmp_path / "runs/babylm/mnli/pretrained-seed42"
    write_babylm_run(other, "mnli", numbers=[])
    lines = [{"prediction": name} for name in ("contradiction", *["neutral"] * 4)]
    write_lines(other / "predictions" / "dev.jsonl", lines)
    found = read_babylm_predictions(epath.Path(tmp_path / "runs"))
    assert found == {"mnli": [2, 1, 1, 1, 1], "rte": NUMBERS}
    assert read_babylm_predictions(epath.Path(other), one) == found


def test_a_whole_file_of_predictions_needs_no_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(past_runs, "BABYLM_SIZES", {"rte": 5})
    read_babylm_predictions(write_babylm_run(tmp_path))
    assert not caplog.text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"data__source": "jsonl"},
            "run on 'rte' from the source 'jsonl'; a sub",
        ),
        (
            {"task": "sst2"},
            "run on 'sst2' from the source 'babylm'; a",
        ),
        ({"data__max_dev_examples": 5}, "max_dev_examples=5, which leaves out dev"),
        ({"data__drop_long": True}, "drop_long=True, which leaves out dev"),
        ({"numbers": NUMBERS[:4]}, "holds 4 predictions for 5 examples; it is damaged"),
    ],
)
def test_runs_that_cannot_be_submitted_are_refused(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        read_babylm_predictions(write_babylm_run(tmp_path, **overrides))


def test_unfinished_and_repeated_runs_cannot_be_submitted(tmp_path):
    first = write_babylm_run(tmp_path / "rte/pretrained-seed42")
    second = write_babylm_run(tmp_path / "rte/pretrained-seed43", seeds=(43,))
    with pytest.raises(UserError, match=r"seed42 and .*seed43 are both runs on 'rte'"):
        read_babylm_predictions(epath.Path(tmp_path))
    with pytest.raises(UserError, match=r"seed42 and .*seed43 are both runs on 'rte'"):
        read_babylm_predictions(first, second)
    (second / "results.json").unlink()
    with pytest.raises(UserError, match=r"seed43 has not finished; run its command"):
        read_babylm_predictions(epath.Path(tmp_path))
    (first / "predictions/dev.jsonl").unlink()
    with pytest.raises(UserError, match=r"dev\.jsonl does not exist; remove .*results"):
        read_babylm_predictions(first)
    write_lines(first / "predictions/dev.jsonl", [{"prediction": "neutral"}])
    with pytest.raises(UserError, match=r"no label of RTE at .*dev\.jsonl:1; it is"):
        read_babylm_predictions(first)


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_a_folder_without_fine_tuned_runs_says_how_to_make_one(tmp_path, name):
    write_pretrained(tmp_path / "pretrained")
    with pytest.raises(UserError, match=r"holds no fine-tuned run; make one .*babylm"):
        read_babylm_predictions(epath.Path(tmp_path / name))
