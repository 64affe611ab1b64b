"""The job of verification: sound runs and exports, and broken ones."""

import dataclasses
import json
import os
import re
import shutil

import broken_copies as copies
import pytest
from tiny_run import ROOT, job_config

from gpt1_jax.errors import UserError
from gpt1_jax.formats import EXPORT
from gpt1_jax.jobs import convert, pretrain
from gpt1_jax.runs.checkpoint_files import delete_checkpoint
from gpt1_jax.studies.verify import job as verify
from gpt1_jax.studies.verify import trajectory

STEPS = (0, 1, 4, 8, 12)


@pytest.fixture
def made(tiny_config, made_once):
    """`made(seed)`: a finished run of 12 steps with milestones, not to be changed."""

    def make(seed):
        config = tiny_config(
            checkpoint__milestone_steps=STEPS, checkpoint__keep_best=0, seed=seed
        )
        name = f"verified_{seed}"
        return made_once(name, lambda folder: pretrain.run(config, str(folder)))

    return make


@pytest.fixture
def run(made, tmp_path):
    """A copy of a run."""
    return shutil.copytree(made(3), tmp_path / "run")


@pytest.fixture
def exported(made, made_once):
    """`exported(seed)`: all milestones of a run as exported, not to be changed."""

    def make(seed):
        name = f"verified_export_{seed}"
        return made_once(name, lambda folder: convert_to(made(seed), folder))

    return make


@pytest.fixture
def publish(exported, tmp_path):
    """An export's copy in `run`, and its table, which was published elsewhere."""
    shutil.copytree(exported(3), tmp_path / "run")
    return shutil.copy(exported(3) / "trajectory.json", tmp_path / "published.json")


def check(tmp_path, **overrides):
    """Runs the job on a folder of runs; returns what it wrote."""
    output = tmp_path / "verified.json"
    values = {"runs": str(tmp_path / "run"), "output": str(output), **overrides}
    try:
        verify.run(job_config("verify", **values), "")
    finally:
        found = json.loads(output.read_text())["folders"] if output.exists() else []
    return found


def problems(tmp_path, **overrides):
    """What is wrong with the only folder, which is refused."""
    with pytest.raises(UserError, match="NOT verified: 1 of 1 folder"):
        check(tmp_path, **overrides)
    [member] = json.loads((tmp_path / "verified.json").read_text())["folders"]
    return member["problems"]


def convert_to(run, folder, target="huggingface", step="milestones"):
    config = job_config("convert", target, init_from=str(run), step=step)
    convert.run(config, str(folder))


def test_a_run_is_verified_to_the_bit(run, tmp_path, capsys):
    [member] = check(tmp_path, losses=3, retrain_step="4")
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Verified: 1 folder with 5 saved states, against the folders' own records, "
        "which can be changed together with the states. Computed again: the digests of "
        "files, tokenizers and parameters, the validation losses of 3 states and the "
        "training after 1 state. All else was only compared."
    )
    assert (member["kind"], member["seed"]) == ("transformer", 3)
    assert member["problems"] == []
    assert [row["step"] for row in member["steps"]] == list(STEPS)
    again = [row["step"] for row in member["steps"] if "valid_loss_again" in row]
    assert again == [0, 4, 12]
    for row in member["steps"]:
        assert row.get("valid_loss_again", row["valid_loss"]) == row["valid_loss"]
    trained = member["trained_again"]
    assert trained == {"from": 4, "to": 8, "bit_for_bit": True, "difference": 0.0}


# Ways to break different steps, or different things of one: one copy does for them.
TOGETHER = (
    *("03 09", "04 23", "06 07 19", "11 26"),
    *("e04 e06 e08 e11 e15", "e10 e12 e16 e17"),
)


def broken_copies():
    """Ways to break a copy, those of `TOGETHER` in one."""
    groups = {}
    for case in (*copies.RUNS, *copies.EXPORTS):
        number = case.name.split()[0]
        first = next((each for each in TOGETHER if number in each.split()), number)
        groups.setdefault(first, []).append(case)
    for name, cases in groups.items():
        is_slow = cases[0].caught_by in (copies.TRAINING, copies.NOTHING)
        marks = [pytest.mark.slow] * is_slow
        yield pytest.param(cases, id=f"{cases[0].caught_by} {name}", marks=marks)


@pytest.mark.parametrize("cases", [*broken_copies()])
def test_a_broken_copy_is_found_out(cases, made, exported, tmp_path):
    """By what must catch it, and by nothing less; a few by nothing."""
    what, step = cases[0].caught_by, cases[0].retrained_from
    source = made if cases[0] in copies.RUNS else exported
    shutil.copytree(source(3), tmp_path / "run")
    for case in cases:
        case.break_it(tmp_path / "run", source(4))
    less, enough = {
        copies.FILES: (None, {}),
        copies.LOSSES: (None, {"losses": 99}),
        copies.TRAINING: ({"losses": 99}, {"retrain_step": step}),
        copies.TABLE: ({}, {"table": str(exported(3) / "trajectory.json")}),
        copies.NOTHING: ({"losses": 99, "retrain_step": step}, None),
    }[what]
    if less is not None:
        assert check(tmp_path, **less)[0]["problems"] == []
    if enough is not None:
        told = "\n".join(problems(tmp_path, **enough))
        assert [case.name for case in cases if not re.search(case.told, told)] == []


def make_pipe(name):
    def make(folder, other):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return make


def lose_digest(metadata):
    del metadata["params_digest"]


def make_endless(name):
    return lambda folder, other: os.truncate(folder / name, 1 << 42)


def link_to_a_device(folder, other):
    (folder / "chck_4_steps/config.json").unlink()
    (folder / "chck_4_steps/config.json").symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (
            lambda run, _: [shutil.rmtree(run / f"checkpoints/{n}") for n in STEPS],
            "it holds no saved step",
        ),
        (
            lambda run, _: copies.edit_metadata(run, 4, lose_digest),
            "step 4: was saved without a digest of its parameters",
        ),
        (
            make_pipe("checkpoints/4/metadata/metadata"),
            "metadata/metadata is a pipe, and reading it may never end",
        ),
    ],
)
def test_harm_to_a_run_is_found_out(run, tmp_path, harm, told):
    harm(run, None)
    [problem] = problems(tmp_path)
    assert told in problem


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (
            copies.edits_table(lambda table: table["steps"]["8"].pop("files")),
            "lists no files of it",
        ),
        (copies.edits_step(name="../other"), "is no table of a trajectory"),
        (copies.edits_step(name="chck_8_steps"), "is no table of a trajectory"),
        (make_pipe("trajectory.json"), "trajectory.json is a pipe"),
        (link_to_a_device, "config.json is a device"),
        (make_endless("chck_4_steps/model.safetensors"), "has 4,398,046,511,104 bytes"),
    ],
)
def test_harm_to_an_export_is_found_out(publish, tmp_path, harm, told):
    harm(tmp_path / "run", None)
    assert told in problems(tmp_path)[0]


def test_a_milestone_that_was_added_when_the_run_was_past_it_is_not_missing(
    run, tmp_path
):
    def add(values):
        values["checkpoint"]["milestone_steps"] = [0, 1, 2, 3, 4, 8, 12]

    copies.edit_json(run / "config.json", add)
    copies.edit_metadata(run, 12, lambda values: add(values["config"]))
    assert check(tmp_path)[0]["problems"] == []


def test_one_broken_member_does_not_hide_the_others(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "runs" / "a")
    shutil.copytree(run, tmp_path / "runs" / "b")
    (tmp_path / "runs" / "a" / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"NOT verified: 1 of 2 folders: .*/a\."):
        check(tmp_path, runs=str(tmp_path / "runs"))
    said = capsys.readouterr().out
    assert "WRONG: " in said and "runs/b (transformer, seed 3)" in said


def test_another_training_is_found_out(run, tmp_path, monkeypatch, capsys):
    """As if step 8 were of a run with other masks."""

    def train_again(run, *steps):
        computation = dataclasses.replace(run.computation, seed=99)
        other = dataclasses.replace(run, computation=computation)
        return trajectory.train_again(other, *steps)

    monkeypatch.setattr(verify, "train_again", train_again)
    [problem] = problems(tmp_path, retrain_step="4")
    assert "trained again from step 4, the parameters differ by" in problem
    assert "from step 4 to step 8 again: not the same" in capsys.readouterr().out


def test_a_text_that_has_changed_is_named(run, tmp_path, corpus_dir):
    other = shutil.copytree(corpus_dir / "texts", tmp_path / "texts")
    (other / "3.txt").write_text("some other words\n" * 40)
    [problem] = problems(tmp_path, losses=1, data__train=str(other))
    assert re.match(r"nothing could be computed again: .*3\.txt", problem)
    assert check(tmp_path)[0]["problems"] == []  # without the text


@pytest.mark.parametrize("step", ["3", "12"])
def test_a_step_to_train_from_needs_a_milestone_after_it(run, tmp_path, step):
    [problem] = problems(tmp_path, retrain_step=step)
    assert f"config.retrain_step='{step}' must be a sound saved step" in problem
    assert "those are [0, 1, 4, 8]" in problem


def test_an_export_in_openai_s_format_has_the_digests_of_the_training(made, tmp_path):
    convert_to(made(3), tmp_path / "run", "openai")
    [member] = check(tmp_path)
    assert [row["params_digest"] for row in member["steps"]] == [
        copies.read_metadata(made(3), step)["params_digest"] for step in STEPS
    ]


def test_a_digest_can_be_computed_without_this_package(made, exported):
    """As docs/suite.md shows it."""
    file = exported(3) / "chck_8_steps" / "model.safetensors"
    page = (ROOT / "docs" / "suite.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(block, names)
    saved = copies.read_metadata(made(3), 8)
    assert names["params_digest"](file) == saved["params_digest"]


@pytest.mark.parametrize("step", [0, 1, 8])
def test_a_step_of_an_export_may_lie_alone_under_any_name(
    exported, tmp_path, step, capsys
):
    """Steps 0 and 1 have the same parameters; git's own files do not matter."""
    shutil.copytree(exported(3) / f"chck_{step}_steps", tmp_path / "run")
    (tmp_path / "run" / ".git").mkdir()
    (tmp_path / "run" / ".git" / "HEAD").symlink_to("nowhere")
    [member] = check(tmp_path)
    assert [row["step"] for row in member["steps"]] == [step]
    said = capsys.readouterr().out
    assert f"| run, step {step} | as saved |" in said
    assert "losses of 0 states and the training after 0 states. All else" in said


def test_a_step_that_is_deleted_while_it_is_read_is_not_wrong(
    run, tmp_path, monkeypatch, capsys
):
    read_params = verify.read_params

    def delete_and_read(folder, step):
        if step == 4:
            delete_checkpoint(folder / "checkpoints" / "4")
        return read_params(folder, step)

    monkeypatch.setattr(verify, "read_params", delete_and_read)
    [member] = check(tmp_path, losses=9)
    assert [row["step"] for row in member["steps"]] == [0, 1, 8, 12]
    said = capsys.readouterr().out
    assert re.search(r"^Step 4 of .* was deleted meanwhile, and is left", said, re.M)
    assert "Verified: 1 folder with 4 saved states, against" in said


def test_a_run_and_an_export_agree_with_their_table(publish, made, tmp_path, capsys):
    [member] = check(tmp_path, table=str(publish))
    written = tmp_path / "verified.json"
    kept = shutil.copy(written, tmp_path / "kept.json")
    for table in (publish, kept):
        for folder in (tmp_path / "run", made(3)):
            [again] = check(tmp_path, runs=str(folder), table=str(table))
            assert again["problems"] == member["problems"] == []
            last = capsys.readouterr().out.splitlines()[-1]
            assert f"together with the states, and against {table}. Comput" in last


def test_another_runs_table_is_refused(publish, made, exported, tmp_path):
    other = str(exported(4) / "trajectory.json")
    assert problems(tmp_path, table=other) == [
        f"none of its states is in {other}, so it is of another training"
    ]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "is no table of a trajectory: kind=None must be text"),
        ({"kind": "a", "seed": 1, "steps": {"x": {}}}, "step='x' must be the number"),
        (
            {"folders": [{"folder": "a", "problems": ["b"], "steps": []}]},
            "lists no folder, or one that was not verified",
        ),
    ],
    ids=str,
)
def test_what_is_no_table_is_refused_before_any_work(tmp_path, values, told):
    table = tmp_path / "published.json"
    table.write_text(json.dumps({**EXPORT.stamp(), **values}))
    with pytest.raises(UserError, match=told):
        check(tmp_path, table=str(table))


def test_what_was_found_does_not_replace_a_file_of_the_run(run, tmp_path):
    before = (run / "config.json").read_bytes()
    told = r"config\.json is a file of the run folder"
    with pytest.raises(FileExistsError, match=told):
        check(tmp_path, output=str(run / "config.json"))
    assert (run / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({}, "neither a run with checkpoints nor"),
        ({"runs": "nothing"}, "there is no such folder"),
        ({"retrain_step": "x"}, "retrain_step='x' must be the number"),
    ],
    ids=str,
)
def test_a_folder_without_a_run_is_refused(tmp_path, overrides, told):
    (tmp_path / "run").mkdir()
    with pytest.raises((UserError, FileNotFoundError), match=told):
        check(tmp_path, **overrides)
