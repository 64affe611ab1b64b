import dataclasses
import json

import pytest
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.config import saved
from gpt1_jax.errors import UserError


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
        path.write_text(json.dumps(written))
        return saved.load_saved(path)

    return load


@pytest.mark.parametrize("job", ["pretrain", "finetune"])
def test_what_is_saved_is_loaded(loaded, job):
    config = config_lib.load(values(job))
    assert loaded(json.loads(json.dumps(config.to_dict()))) == config


def test_newer_keys_are_filled_in_with_what_the_run_did(loaded):
    for job in ("pretrain", "finetune"):
        newer = saved.newer_keys(config_lib.JOBS[job].config_class())
        flat = saved.flatten(values(job))
        assert newer.keys() <= flat.keys() and newer
        older = {key: value for key, value in flat.items() if key not in newer}
        config = saved.flatten(loaded(saved.unflatten(older)).to_dict())
        assert {key: config[key] for key in newer} == dict(newer)


def test_a_key_that_is_gone_is_dropped_if_its_way_is_still_there(loaded):
    written = values()
    written["model"]["dropout_impl"] = "hash"
    assert loaded(written) == config_lib.load(values())
    written["model"]["dropout_impl"] = "threefry"
    with pytest.raises(ValueError, match=r"dropout_impl='threefry' no longer exists"):
        loaded(written)


@pytest.mark.parametrize("from_scratch", [True, False])
def test_a_run_of_an_older_suite_opens_whatever_else_the_suite_ran(
    loaded, from_scratch
):
    written = values("finetune", init_from="run")
    written["suite"] = {"from_scratch": from_scratch, "keep_checkpoints": False}
    suite = loaded(written).suite
    assert (suite.compare, suite.lstm_init_from) == ("", "")
    assert (suite.aux_lm_weights, suite.train_sizes) == ((), ())


@pytest.mark.parametrize(
    ("key", "planted", "found"),
    [
        ("train.compilation_cache_dir", "/planted", ""),
        ("data.cache_dir", "/planted", ""),
        ("data.tfds_data_dir", "/planted", ""),
        ("data.num_workers", 999, 0),
    ],
)
def test_a_strangers_folder_decides_nothing_about_this_machine(
    loaded, key, planted, found
):
    written = values(**{key: planted})
    assert saved.flatten(loaded(written).to_dict())[key] == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "3", "{", "{}", '{"job": null}', '{"job": ["pretrain"]}'),
        *('{"job": "pretrain"}', '{"job": "pretrain", "seed": 0, "seed.a": 1}'),
        *("[" * 100_000, '{"a":' * 100_000),
    ],
    ids=lambda text: text[:20],
)
def test_other_content_is_one_error_that_names_the_file(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        saved.load_saved(tmp_path / "config.json")


def test_an_older_folder_keeps_its_ways_and_says_so():
    given = config_lib.load(values(eval__max_batches=3))
    older = values()
    del older["eval"]["max_batches"]
    config, notes = saved.adopt_older(given, older)
    assert config.eval.max_batches == 0
    assert notes == [
        "config.eval.max_batches is newer than this run, which continues with 0."
    ]
    assert saved.adopt_older(given, values()) == (given, [])


@pytest.mark.parametrize(
    ("init_from", "saved_as", "step"),
    [
        ("run", -1, "newest"),
        ("run", 1200, "1200"),
        ("run", "best", "best"),
        ("", -1, "default"),
    ],
)
def test_steps_that_were_numbers_are_read(loaded, init_from, saved_as, step):
    written = values()
    written |= {"init_from": init_from, "init_step": saved_as}
    del written["step"]
    assert loaded(written).step == step


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("", ()),
        ("1M", (10**6,)),
        ("2.5M, 300,1k", (300, 1000, 2_500_000)),
        ("1M:4M:+1M", (10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6)),
        ("1M:4M:+2M", (10**6, 3 * 10**6)),  # up to the last at most
        ("1M:1B:*10", (10**6, 10**7, 10**8, 10**9)),
        ("1:10:*1.5", (1, 2, 3, 5, 8)),  # 1.5, 2.25, 3.375, 5.0625, 7.59375
        ("1k:3k:+1k,2k:8k:*2", (1000, 2000, 3000, 4000, 8000)),  # 2k but once
        ("0.5k:1.5k:+0.5k", (500, 1000, 1500)),
    ],
)
@pytest.mark.parametrize("unit", ["words", "tokens", "steps"])
def test_milestones_that_were_ranges_are_read(loaded, unit, text, amounts):
    written, now = values(), config_lib.load(values())
    for each in ("words", "tokens", "steps"):
        del written["checkpoint"][f"milestone_{each}"]
        written["checkpoint"][f"keep_at_{each}"] = text if each == unit else ""
    checkpoint = loaded(written).checkpoint
    assert checkpoint.milestones[1] == amounts
    assert not amounts or checkpoint.milestones[0] == unit
    given = dataclasses.replace(now, checkpoint=checkpoint)
    assert saved.adopt_older(given, written) == (given, [])


@pytest.mark.parametrize(
    "part",
    [
        *("a", "-1", "0", "1.5", "1m", "1 M", "1e6", "\u0661", "1M:2M", "1M:2M:1M"),
        *("2M:1M:+1", "1:5:+0", "1:5:+0.5", "1:5:*1", "1:5:*0.5", "1:5:-1", "1k,"),
        *("1:2:+1:2", "0:5:+1", "1:1B:+1", "1:9:*1.0001", ["1M"]),
    ],
    ids=str,
)
def test_milestones_that_were_never_written_are_refused(loaded, part):
    written = values()
    written["checkpoint"]["keep_at_words"] = part
    with pytest.raises(UserError, match=r"config\.checkpoint\.keep_at_words="):
        loaded(written)


def test_steps_kept_for_good_are_called_milestones(loaded):
    given = load_config("sst2", file="zero_shot", init_from="run", step="milestones")
    config = config_lib.load(given.to_dict())
    written = {**json.loads(json.dumps(config.to_dict())), "step": "kept"}
    assert loaded(written) == config
    assert saved.adopt_older(config, written) == (config, [])


def test_a_run_goes_on_with_the_step_that_was_the_default():
    def configured(step):
        given = load_config("sst2", file="zero_shot", init_from="run", step=step)
        return config_lib.load(given.to_dict())

    default, newest = configured("default"), configured("newest")
    adopted, notes = saved.adopt_older(default, newest.to_dict())
    assert adopted == newest
    assert notes == ["config.step='newest' is what this run continues with."]
    assert saved.adopt_older(default, default.to_dict()) == (default, [])
    best = configured("best")
    assert saved.adopt_older(default, best.to_dict()) == (default, [])


def test_how_long_to_wait_is_for_whoever_runs_the_program():
    """Not for the folder, whether it names the waits or is older than they are."""
    given = config_lib.load(values(distributed__stuck_minutes=5.0))
    older = values()
    del older["distributed"]
    assert saved.adopt_older(given, older) == (given, [])
    reset = saved.without_local(given.to_dict())
    assert reset["distributed"] == values()["distributed"]
    assert reset["seed"] == given.seed


def test_flatten_and_unflatten_are_inverse():
    tree = {"a": 1, "b": {"c": (1, 2), "d": {"e": None}}}
    assert saved.flatten(tree) == {"a": 1, "b.c": (1, 2), "b.d.e": None}
    assert saved.unflatten(saved.flatten(tree)) == tree


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mesh", {"sharding": {"a": 1}}, r"config\.mesh\.sharding\.a: 'sharding' is a"),
        ("mesh", 5, r"config\.mesh=5 must be a section"),
        ("model", {}, r"lacks the keys .*num_layers"),
        ("model", "x", r"config\.model='x' must be a section"),
    ],
)
@pytest.mark.parametrize("job", ["pretrain", "finetune"])
def test_a_key_of_another_kind_is_one_error(loaded, job, key, value, message):
    with pytest.raises(UserError, match=rf"is not a run's configuration: .*{message}"):
        loaded({**values(job), key: value})
