"""What makes a run the same run, on all its processes."""

import json
import re

import pytest
from etils import epath
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.config import JOBS
from gpt1_jax.config.checks import (
    CONTENT,
    MACHINE,
    MODEL,
    default_values,
    keys_of,
    marked_keys,
)
from gpt1_jax.config.flat import flatten, unflatten
from gpt1_jax.config.saved import saved_values
from gpt1_jax.data.files import write_json
from gpt1_jax.errors import UserError
from gpt1_jax.formats import RUN_FOLDER
from gpt1_jax.runs import resume
from gpt1_jax.runs.folder import has_begun
from gpt1_jax.runs.resume import (
    Identity,
    begin_run,
    changed_keys,
    differing_documents,
    fixed_values,
    refuse_changes,
)

# What each key of any job may do when a run resumes, in one place.
FREE = {
    "preset",
    "model.attention_form",
    "model.layer_norm_form",
    "model.layer_loop",
    "model.remat",
    "data.cache_dir",
    "data.num_workers",
    "train.max_nonfinite_steps",
    "train.compilation_cache_dir",
    "compilation_cache_dir",
    "batch_tokens",
    "finetuned_dir",
    "figure",
    "custom.name",
}
FREE_SECTIONS = {"mesh", "eval", "checkpoint", "log", "distributed", "suite"}
BY_CONTENT = {
    "init_from",
    "baseline_init_from",
    "tokenizer.path",
    "data.train",
    "data.valid",
    "data.dev",
    "data.test",
    "data.dir",
    "data.files",
    "data.tfds_data_dir",
}
NEVER_EMPTIED = {"init_from", "baseline_init_from"}
LOCAL = {
    "train.compilation_cache_dir": "",
    "data.cache_dir": "",
    "data.tfds_data_dir": "",
    "data.num_workers": 0,
    "distributed.initialization_seconds": 300,
    "distributed.heartbeat_seconds": 100,
    "distributed.shutdown_seconds": 300,
    "distributed.stuck_minutes": 30.0,
}


@pytest.mark.parametrize("job", JOBS)
def test_the_fields_say_what_may_change_on_resume(job):
    """For every key of every job, as the table above."""
    cls = JOBS[job].config_class()
    values = unflatten({each.name: "" for each in keys_of(cls)})
    keys = flatten({**values, "job": job}).keys()
    free = {k for k in keys if k in FREE or k.split(".")[0] in FREE_SECTIONS}
    assert fixed_values({**values, "job": job}).keys() == keys - free
    by_content = (BY_CONTENT & keys) - free
    if job in ("pretrain", "finetune"):
        by_content.add("step")  # of the origin
    content = marked_keys(cls, CONTENT)
    assert content.keys() == by_content
    stay = {key for key, marks in content.items() if MODEL in marks}
    assert stay == by_content & NEVER_EMPTIED
    defaults = default_values(cls)
    local = {key: defaults[key] for key in marked_keys(cls, MACHINE)}
    assert local == {key: LOCAL[key] for key in LOCAL.keys() & keys}


def paper(**overrides):
    return config_lib.load(load_config("paper", **overrides).to_dict())


def test_changed_keys_name_what_makes_another_run():
    saved = json.loads(json.dumps(paper().to_dict()))
    assert not changed_keys(saved, paper().to_dict())
    free = paper(
        eval__every_steps=3,
        log__every_steps=1,
        checkpoint__keep_best=0,
        model__remat=True,
        model__layer_loop="scan",
        data__num_workers=1,
        distributed__heartbeat_seconds=30,
    )
    assert not changed_keys(saved, free.to_dict())
    other = paper(optimizer__learning_rate=1e-3, model__num_layers=2, seed=7)
    assert changed_keys(saved, other.to_dict()) == {
        "model.num_layers": (12, 2),
        "optimizer.learning_rate": (2.5e-4, 1e-3),
        "seed": (0, 7),
    }


def test_a_longer_run_is_shown_the_way():
    saved = json.loads(json.dumps(paper().to_dict()))
    longer = paper(train__num_epochs=200.0).to_dict()
    with pytest.raises(ValueError, match=r"saved 100.0\. Use .*init_from=FOLDER"):
        refuse_changes(saved, longer, "here")
    del saved["init_optimizer"], longer["init_optimizer"]  # a job that has no such key
    for other in (longer, paper(seed=3).to_dict()):
        saved["job"] = other["job"]
        with pytest.raises(ValueError, match="another configuration") as raised:
            refuse_changes(saved, other, "here")
        assert "init_from=FOLDER" not in str(raised.value)


def text(train, **overrides):
    return paper(data__source="text", data__train=train, **overrides).to_dict()


def identity(**changes):
    digests = {"text": "t" * 64, "dev examples": "d" * 64, "origin": "o" * 64}
    values = {"tokenizer": "k" * 64, "digests": digests}
    return Identity(**{"config": paper().to_dict(), **values, **changes})


def test_identity_names_the_part_that_differs(tmp_path):
    mine = identity()
    mine.check(mine.metadata(3), tmp_path)
    for name in mine.digests:
        other = identity(digests={**mine.digests, name: "0" * 64})
        refused = pytest.raises(
            UserError,
            match=f"The {name} of .* began with.*: .* digest is 0{{12}}, saved",
        )
        with refused:
            other.check(mine.metadata(3), tmp_path)
        lost = {key: each for key, each in mine.digests.items() if key != name}
        with pytest.raises(UserError, match=f"The {name} of .*digest is missing"):
            identity(digests=lost).check(mine.metadata(3), tmp_path)
        with pytest.raises(UserError, match=f"The {name} of .*saved missing"):
            mine.check(identity(digests=lost).metadata(3), tmp_path)
    moved = identity(config=text("a.txt", init_from="now"), digests={"origin": "1"})
    was = identity(config=text("a.txt", init_from="then"), digests={"origin": "2"})
    with pytest.raises(UserError, match=r"began with \(now now, then then\)"):
        moved.check(was.metadata(3), tmp_path)
    with pytest.raises(UserError, match="The tokenizer of this run"):
        identity(tokenizer="0" * 64).check(mine.metadata(3), tmp_path)


def test_identity_is_content_and_not_the_place(tmp_path):
    moved = identity(config=text("elsewhere/*.txt", init_from="there"))
    here = identity(config=text("here.txt", init_from="here"))
    moved.check(here.metadata(3), tmp_path)
    scratch = identity(config=text("here.txt"))
    for saved, now in ((scratch, moved), (moved, scratch)):
        with pytest.raises(UserError, match="another configuration: config"):
            now.check(saved.metadata(3), tmp_path)
    with pytest.raises(UserError, match="another configuration"):
        identity(config=text("here.txt", seed=3)).check(moved.metadata(3), tmp_path)


def test_the_documents_that_differ_are_named(tmp_path):
    saved = {"/old/a.txt": "1" * 64, "/old/b.txt": "2" * 64, "/old/c.txt": "3" * 64}
    identity(documents=saved).write_documents(tmp_path)
    now = {"/new/a.txt": "1" * 64, "/new/b.txt": "9" * 64, "/new/d.txt": "4" * 64}
    other = identity(digests={"text": "0" * 64}, documents=now)
    with pytest.raises(UserError) as error:
        other.check(identity(digests={"text": "t" * 64}).metadata(3), tmp_path)
    for phrase in (
        "/new/b.txt holds other text",
        "/new/d.txt is new",
        "/old/c.txt is missing",
    ):
        assert phrase in str(error.value)
    assert "a.txt" not in str(error.value)
    shuffled = dict(reversed(saved.items()))
    assert differing_documents(saved, shuffled) == [
        "the same documents in another order or split"
    ]


@pytest.mark.parametrize("others", [1, 20])
def test_of_many_differences_the_first_are_named(monkeypatch, others):
    def gather(text):
        return [text, *['{"a": 1}'] * others]

    monkeypatch.setattr(resume, "gather", gather)
    resume.check_same({"a": 1})
    with pytest.raises(ValueError, match=r"a is 1 on process 1, 2 on process 0") as e:
        resume.check_same({"a": 2})
    assert ("and 15 more" in str(e.value)) == (others == 20)


@pytest.fixture
def begun(tmp_path):
    """A folder that holds a checkpoint of the paper's configuration."""
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    write_json(tmp_path / "config.json", saved_values(paper()))
    return epath.Path(tmp_path)


def test_a_folder_of_another_job_is_refused_in_one_line(begun):
    assert begin_run(begun, paper()) == paper()
    values = load_config("sst2", file="finetune", init_from="runs/pretrain/paper")
    with pytest.raises(ValueError, match=r"job 'pretrain', not 'finetune'") as error:
        begin_run(begun, config_lib.load(values.to_dict()))
    assert re.search(r"name another --workdir\.$", str(error.value))


def test_scores_begin_a_run_as_checkpoints_do(tmp_path):
    folder = epath.Path(tmp_path)
    write_json(folder / "config.json", saved_values(paper()))
    (folder / "scores").mkdir()
    assert not has_begun(folder)
    begin_run(folder, paper(seed=1))
    (folder / "scores" / "run").mkdir()
    assert has_begun(folder)
    with pytest.raises(ValueError, match=r"config.seed is 1, saved 0"):
        begin_run(folder, paper(seed=1))


@pytest.mark.parametrize(
    ("stamp", "what"),
    [
        ({}, "is a run folder without the number of its format"),
        ({"format": 2, "gpt1_jax": "1.3.0"}, "of format 2, written by gpt1_jax 1.3.0"),
    ],
)
def test_a_folder_of_another_format_is_refused(begun, stamp, what):
    write_json(begun / "config.json", {**stamp, **paper().to_dict()})
    with pytest.raises(UserError, match=what):
        begin_run(begun, paper())


@pytest.mark.parametrize(
    "text", ["[]", "null", "3", "{}", '{"job": 3}', '{"job": "x"}', "", "[" * 100_000]
)
def test_a_configuration_file_of_another_kind_is_one_error(begun, text):
    if text.startswith('{"job"'):
        text = json.dumps({**RUN_FOLDER.stamp(), **json.loads(text)})
    (begun / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config.json|of the job"):
        begin_run(begun, paper())


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match=r"--workdir=DIR"):
        begin_run(epath.Path(tmp_path / "file" / "run"), paper())
