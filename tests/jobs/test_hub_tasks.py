"""Tasks of the Hub: the real client and real Parquet against a small server."""

import json

import jax
import pytest
from hub_server import serve_hub, use_hub
from made_up_tasks import made_up, write_hub, write_hub_file
from tiny_run import as_flags, job_config, run_program
from tiny_tasks import finetune_config, rows, write_lines

from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.interop.hub_files import fetch_tasks
from gpt1_jax.jobs import convert, finetune
from gpt1_jax.studies.zero_shot import job as zero_shot
from gpt1_jax.studies.zero_shot.tasks import ZERO_SHOT
from gpt1_jax.tasks.examples import load_split
from gpt1_jax.tasks.paper_tasks import TASKS

ON_HUB = {name: task for name, task in TASKS.items() if task.published.hub}
GLUE = "nyu-mll/glue"
COUNT = 18  # examples of a subset
NOT_IN_ALL = ("boolq", "multirc", "wsc")


def publish(server, folder, tasks, change=lambda split, made: made):
    """Writes the splits of tasks as the Hub has them, and serves them."""
    for task in tasks:
        for split in task.published.hub:
            made = change(split, made_up(task, split, COUNT))
            write_hub(task, split, made, folder)
    for path in [*folder.glob("*/*"), *folder.glob("*/*@refs/convert/parquet")]:
        name, _, revision = str(path.relative_to(folder)).partition("@")
        server.datasets.setdefault(name, {})[revision or "main"] = path


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A Hub without anything, and a machine that has read nothing yet."""
    with serve_hub(tmp_path / "pushed") as server:
        use_hub(server, tmp_path, monkeypatch)
        yield server


def test_the_hub_has_every_task_but_story_cloze():
    assert set(TASKS) - set(ON_HUB) == {"story_cloze"}
    zero_shot = {name: each.task for name, each in ZERO_SHOT.items()}
    missing = {name for name, task in zero_shot.items() if not task.published.hub}
    assert missing == {"story_cloze"}


def test_tasks_are_fetched_and_each_repository_is_asked_once(server, tmp_path, capfd):
    tasks = [TASKS[name] for name in ("sst2", "story_cloze", "mnli", "sci_tail")]
    publish(server, tmp_path / "data", [ON_HUB[t.name] for t in (tasks[0], *tasks[2:])])
    found, missing = fetch_tasks(tasks)
    assert list(found) == ["sst2", "mnli", "sci_tail"]
    for name, task in found.items():
        for split in task.published.hub:
            read = load_split(task, split, source="hub", directory="")
            made = made_up(task, split, COUNT)
            assert [(e.text, e.label, e.subset) for e in read] == [
                (m.text, m.label, m.subset) for m in made
            ], name
    said = capfd.readouterr().out
    assert f"Skipping Story Cloze: {missing['story_cloze']}" in said
    assert "is not on the Hub: its authors send the files to" in said
    asked = [x for x in server.requests if "/api/da" in x and "tree" not in x]
    assert sorted(asked) == [
        "GET /api/datasets/allenai/scitail/revision/main",
        f"GET /api/datasets/{GLUE}/revision/main",
    ]


def test_a_dataset_that_lacks_a_file_is_refused(server, tmp_path):
    publish(server, tmp_path / "data", [TASKS["sst2"]])
    path = f"{GLUE}/sst2/validation-00000-of-00001.parquet"
    (tmp_path / "data" / path).unlink()
    message = "SST-2 at 'hf://.*validation-.* names none of its 2 files: sst2/te"
    with pytest.raises(MissingData, match=message):
        fetch_tasks([TASKS["sst2"]])


def test_what_cannot_be_had_is_one_line(server, tmp_path):
    tasks = [TASKS["rte"], TASKS["snli"]]
    publish(server, tmp_path / "data", tasks)
    server.private.add(GLUE)
    found, missing = fetch_tasks(tasks)
    assert list(found) == ["snli"]
    assert "nyu-mll/glue does not exist on the Hub, or it is private" in missing["rte"]
    with pytest.raises(MissingData, match=r"RTE at 'hf://.*or it is private"):
        fetch_tasks(tasks[:1])
    for status in (429, 503):  # nothing of this task was fetched before
        server.answers["/api/"] = status
        with pytest.raises(UserError, match=r"RTE at .* the Hub does not answer"):
            fetch_tasks(tasks)
    assert fetch_tasks(tasks[1:])[0] == {"snli": found["snli"]}


def test_a_folder_does_not_go_with_the_hub(finetune_base, tmp_path):
    with pytest.raises(UserError, match=r"config.data.dir=.* leave it empty"):
        finetune_config("sst2", {**finetune_base, "data.source": "hub"})


def test_a_suite_fetches_all_tasks_before_it_trains(
    server, tmp_path, finetune_base, carried_out, capsys
):
    publish(server, tmp_path / "data", [TASKS["sst2"], TASKS["snli"]])
    base = {**finetune_base, "data.source": "hub", "data.dir": ""}
    config = finetune_config("sst2+story_cloze+sci_tail+snli", base)
    finetune.run(config, str(tmp_path / "run"))
    assert carried_out == ["sst2/pretrained-seed0", "snli/pretrained-seed0"]
    text = (tmp_path / "run" / "results.md").read_text()
    said = capsys.readouterr().out
    for title, why in (("Story Cloze", "not on the Hub"), ("SciTail", "not exist on")):
        assert title in text and why in text
        assert said.count(f"Skipping {title}: ") == 1
        assert said.index(f"Skipping {title}: ") < said.index("Results: ")
    server.requests.clear()
    finetune.run(config, str(tmp_path / "run"))
    assert "all 2 runs in" in capsys.readouterr().out
    assert not [each for each in server.requests if each.startswith("GET /datasets")]


def as_on_hub(row):
    """A row of WSC273, with the columns that the Hub has."""
    place = {"pronoun": row["pronoun_text"], "pronoun_loc": row["pronoun_start"]}
    quote = {"quote": "fed", "quote_loc": 0, "source": "a book"}
    options = {"options": [row["option1"], row["option2"]], "label": row["label"]}
    return {"text": row["text"], **place, **quote, **options}


def test_zero_shot_tasks_are_read_from_the_hub(server, tmp_path, pretrained, capsys):
    for name in ("dpr", "wsc273"):
        made = rows(name, 6, seed=0)
        write_lines(tmp_path / "lines" / name / "test.jsonl", made)
        if name == "wsc273":
            made = [as_on_hub(row) for row in made]
        for subsets in ZERO_SHOT[name].task.published.hub.values():
            write_hub_file(subsets[""], made, tmp_path / "data")
    publish(server, tmp_path / "data", [])
    scores = {}
    for source, folder in (("hub", ""), ("jsonl", str(tmp_path / "lines"))):
        given = {"init_from": str(pretrained), "data.source": source}
        given |= {"data.dir": folder}
        given["compilation_cache_dir"] = jax.config.jax_compilation_cache_dir
        config = job_config("zero_shot", "dpr+wsc273+story_cloze", **given)
        zero_shot.run(config, str(tmp_path / f"of-{source}"))
        results = json.loads((tmp_path / f"of-{source}" / "results.json").read_text())
        scores[source] = results["runs"][0]["checkpoints"]
    assert scores["hub"] == scores["jsonl"]
    assert set(scores["hub"][0]["tasks"]) == {"dpr", "wsc273"}
    assert "Skipping Story Cloze: " in capsys.readouterr().out


def shorter(split, made):
    """The same labels with texts that a tiny model reads whole."""
    kept = ("cause", "effect")
    return [
        each._replace(
            text=tuple(t if t in kept else f"{split} {n}" for t in each.text),
            choices=tuple(f"{choice} {n}" for choice, _ in enumerate(each.choices)),
        )
        for n, each in enumerate(made)
    ]


@pytest.mark.slow
def test_the_tables_of_the_paper_from_nothing_but_the_hub(
    server, tmp_path, pretrained, finetune_base
):
    """The headline's command; weights and tasks are toys in the real layout."""
    model = str(tmp_path / "model")
    config = job_config("convert", "huggingface", init_from=str(pretrained))
    convert.run(config, model)
    server.models["openai-community/openai-gpt"] = {"main": tmp_path / "model"}
    paper = [task for name, task in ON_HUB.items() if name not in NOT_IN_ALL]
    publish(server, tmp_path / "data", paper, shorter)
    base = {**finetune_base, "init_from": "hf://openai-community/openai-gpt"}
    base |= {"data.source": "hub", "data.dir": "", "train.num_epochs": 1.0}
    base["eval.first_epoch_steps"] = "()"
    command = ("--config=configs/finetune.py:all", *as_flags(base))
    code, printed = run_program(*command, f"--workdir={tmp_path / 'run'}")
    assert code == 0, printed
    assert "Skipping Story Cloze: Story Cloze is not on the Hub: its auth" in printed
    table = (tmp_path / "run" / "results.md").read_text()
    for task in paper:
        assert f"| {task.title}" in table or task.title in table
        assert (tmp_path / "run" / task.name).is_dir()
    assert (tmp_path / "run" / "glue.zip").exists()
    with_ax = tmp_path / "run" / "mnli" / "pretrained-seed0" / "glue" / "AX.tsv"
    assert len(with_ax.read_text().splitlines()) == COUNT + 1
    print(printed)
