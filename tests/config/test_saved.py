import importlib.util
import json

import pytest
from tiny_run import ROOT, load_config

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.config import saved
from gpt1_jax.config.checks import keys_of
from gpt1_jax.config.flat import flatten, replace_gone
from gpt1_jax.errors import UserError
from gpt1_jax.formats import RUN_FOLDER
from gpt1_jax.runs import resume

SAVED = ROOT / "tests" / "saved_runs" / "1.0.0"
SIZES = ("kind", "num_layers", "num_heads", "embed_dim", "mlp_dim", "max_seq_len")
SIZES += ("lstm_units",)

spec = importlib.util.spec_from_file_location("make", SAVED.parent / "make.py")
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


def values(job="pretrain", **overrides):
    preset = {"pretrain": "paper", "finetune": "sst2"}[job]
    found = load_config(preset, file=job, **overrides).to_dict()
    if job == "finetune":  # its run folders hold the sizes of the pre-trained model
        found["init_from"] = "run"
        found["model"] = {**values()["model"], **found["model"]}
    return json.loads(json.dumps(found))


@pytest.fixture
def loaded(tmp_path):
    """Writes values as a config.json and loads it."""

    def load(written):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**RUN_FOLDER.stamp(), **written}))
        return saved.load_saved(path)

    return load


# What runs did before a key was there; its default today, whatever a preset has.
_OF_ALL = {"checkpoint.every_minutes": 0.0, "log.wandb": False, "figure": ".png"}
_OF_ALL |= {"data.skip_empty": False, "eval.patience": 0}
NEWER = {  # than 1.0.0
    "pretrain": {
        **_OF_ALL,
        "tokenizer.lowercase": True,
        "data.document_separator": "",
    },
    "finetune": {
        **_OF_ALL,
        **{f"data.{key}": 0 for key in ("dev_fraction", "folds", "fold")},
        **{f"custom.{key}": "" for key in ("name", "template", "positive")},
        "data.skip_unlabelled": False,
        "custom.class_weights": (),
        "custom.calibrate": False,
    },
    "convert": {
        **dict.fromkeys(("push_to", "push_license"), ""),
        "push_private": True,
        "push_confirm": False,
        "push_language": (),
    },
    "zero_shot": {"figure": ".png"},
    "minimal_pairs": {"figure": ".png"},
    "reading_times": {"figure": ".png"},
    "babylm": {"figure": ".png"},
}
OF_1_0 = {name: run for name, *run in make.RUNS if name not in ("exported", "suite")}


@pytest.mark.parametrize("name", OF_1_0)
def test_every_default_continues_what_1_0_did(name):
    """A folder that lacks a key has its default, so defaults never change meaning."""
    job, preset, flags = OF_1_0[name]
    held = saved.known_values(saved.read_values(SAVED / name / "config.json"))
    defaults = gpt1_jax.defaults(f"{job}:{preset}" if preset else job).to_dict()
    of_origin = {f"model.{key}" for key in SIZES} if job != "pretrain" else set()
    of_suite = {"suite.aux_lm_weights", "suite.train_sizes"}  # none in a run's folder
    changed = {
        key: value
        for key, value in flatten(defaults).items()
        if key in held and value != held[key] and key not in {*flags, *of_suite}
    }
    # "default" is the newest step of a pre-trained run, which 1.0 named itself; the
    # preset quickstart keeps milestones, which may change when a run resumes.
    of_jobs = {"finetune": {"step": "default"}}
    if "milestone_steps" not in str(flags) and preset == "quickstart":
        of_jobs["pretrain"] = {"checkpoint.milestone_steps": (0, 50, 150, 500, 1500)}
    assert changed == of_jobs.get(job, {})
    assert held.keys() <= {*flatten(defaults), *of_origin}

    cls = config_lib.find_job(job).config_class()
    newer = {each.name: each.default for each in keys_of(cls) if each.name not in held}
    assert newer == NEWER.get(job, {})


def test_a_newer_key_that_is_set_on_resuming_is_a_change_like_any_other(loaded):
    """A folder that lacks it has its default; that of config.eval is free."""
    written = values()
    del written["data"]["skip_empty"], written["eval"]["patience"]
    assert loaded(written) == config_lib.load(values())
    given = values(**{"data.skip_empty": True, "eval.patience": 3})
    with pytest.raises(UserError, match=r"skip_empty is True, saved False\. Use the"):
        resume.refuse_changes(written, given, "here")
    given["data"]["skip_empty"] = False
    resume.refuse_changes(written, given, "here")


NOTES = {"note": "to be repeated", "_host": {"name": "a1", "cores": [1, 2]}}


def test_a_note_is_passed_over_with_a_line(loaded, monkeypatch, tmp_path):
    said = []
    monkeypatch.setattr(saved.logging, "warning", lambda *line: said.append(line))
    written = {**values(), **NOTES}
    written["train"]["why"] = 1
    path = str(tmp_path / "config.json")
    for _ in range(2):
        assert loaded(written) == config_lib.load(values())
        ((text, *named),) = said  # once
        named = text % tuple(named)
        assert named.startswith(path)
        assert named.endswith("ignored: train.why, note, _host.name, _host.cores.")
    given = config_lib.load(values()).to_dict()
    assert not resume.changed_keys(written, given)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"gpt1_jax": "9.1.0"}, r"is of gpt1_jax 9\.1\.0, which is newer, .*: note, "),
        ({"format": 2}, "reads format 1"),
    ],
)
def test_an_unknown_key_of_a_later_version_is_refused(loaded, more, problem):
    with pytest.raises(UserError, match=problem):
        loaded({**values(), **NOTES, **more})
    if "gpt1_jax" in more:
        assert loaded({**values(), **more}) == config_lib.load(values())


@pytest.mark.parametrize(
    ("before", "now", "gone"),
    [
        (("auto", 2), "auto", "tensor_parallelism=2"),
        (("optimizer", 1), "full", "sharding='optimizer'"),
    ],
)
def test_a_run_of_1_0_opens_and_resumes_under_todays_names(loaded, before, now, gone):
    """No way to split a state changes what is computed."""
    written = values(**{"data.text_field": "body"})
    given = config_lib.load(written)
    written["data"]["jsonl_field"] = written["data"].pop("text_field")
    keys = ("sharding", "tensor_parallelism")
    written["mesh"] = dict(zip(keys, before, strict=True))
    assert (loaded(written).data, loaded(written).mesh.sharding) == (given.data, now)
    assert not resume.changed_keys(written, given.to_dict())
    said = f"config.mesh.{gone} is gone since this run began, which continues without."
    _, notes = replace_gone(flatten(written))
    assert notes == [said]


@pytest.mark.parametrize("job", ["pretrain", "finetune"])
def test_a_users_own_file_with_the_keys_of_1_0_still_works(job):
    """A copy of a file of 1.0, which listed every key."""
    copy, today = values(job), config_lib.load(values(job))
    for key in NEWER[job]:
        *sections, name = key.split(".")
        section = copy[sections[0]] if sections else copy
        del section[name]
    copy["mesh"]["tensor_parallelism"] = 1
    if job == "pretrain":
        copy["data"]["jsonl_field"] = copy["data"].pop("text_field")
    assert config_lib.load(copy) == today
    copy["mesh"]["tensor_parallelism"] = 2
    with pytest.raises(UserError, match=r"config\.mesh has unknown keys"):
        config_lib.load(copy)


def test_the_format_is_no_key_of_the_configuration(loaded, tmp_path):
    config = loaded(values())
    held = saved.saved_values(config)
    assert held["format"] == 1 and held["gpt1_jax"] == gpt1_jax.__version__
    (tmp_path / "config.json").write_text(json.dumps(held))
    read = saved.read_values(tmp_path / "config.json")
    assert flatten(read) == flatten(config.to_dict())


def test_a_strangers_folder_decides_nothing_about_this_machine(loaded):
    keys = ("train.compilation_cache_dir", "data.cache_dir", "data.tfds_data_dir")
    planted = dict.fromkeys(keys, "/planted")
    found = flatten(loaded(values(**planted, **{"data.num_workers": 999})).to_dict())
    assert [found[key] for key in (*keys, "data.num_workers")] == ["", "", "", 0]


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"job": null}', '{"job": ["pretrain"]}', "[" * 100_000),
        *('{"job": "pretrain"}', '{"job": "pretrain", "seed": 0, "seed.a": 1}'),
    ],
    ids=lambda text: text[:20],
)
def test_other_content_is_one_error_that_names_the_file(tmp_path, text):
    if text.startswith('{"job"'):
        text = text.replace("{", f"{json.dumps(RUN_FOLDER.stamp())[:-1]}, ", 1)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        saved.load_saved(tmp_path / "config.json")


def test_how_long_to_wait_is_for_whoever_runs_the_program():
    given = config_lib.load(values(distributed__stuck_minutes=5.0))
    assert saved.load_values(given.to_dict()) == config_lib.load(values())
    left = saved.portable_values(given.to_dict())
    assert "distributed.stuck_minutes" not in left and left["seed"] == given.seed


def test_a_folder_for_transformers_is_to_be_converted(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "openai-gpt", "n_layer": 2}))
    way_out = f"make a run of it with .*convert.py:run --config.init_from={tmp_path} "
    with pytest.raises(UserError, match=way_out):
        saved.load_saved(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mesh", {"sharding": {"a": 1}}, r"mesh\.sharding\.a: 'sharding' is a value"),
        ("mesh", 5, r"config\.mesh=5 must be a section"),
        ("model", {"kind": "lstm"}, r"config\.model lacks the keys"),
    ],
)
def test_a_key_of_another_kind_is_one_error(loaded, key, value, message):
    with pytest.raises(UserError, match=rf"is not a run's configuration: .*{message}"):
        loaded({**values(), key: value})
