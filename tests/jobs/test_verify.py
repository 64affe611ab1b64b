"""The job of verification: sound runs and exports, and broken ones."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest
from etils import epath
from tiny_run import ROOT, load_config

from gpt1_jax import config as config_lib
from gpt1_jax.data.files import sha256
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import convert, pretrain, verify
from gpt1_jax.training import trajectory

STEPS = (0, 1, 2, 4, 8, 12)


@pytest.fixture
def run(tiny_config, made_once, tmp_path):
    """A copy of a finished run of 12 steps with milestones."""
    config = tiny_config(
        checkpoint__milestone_steps=STEPS, checkpoint__keep_best=0, seed=3
    )
    made = made_once("verified", lambda folder: pretrain.run(config, str(folder)))
    return shutil.copytree(made, tmp_path / "run")


def check(tmp_path, **overrides):
    """Runs the job on a folder of runs; returns what it wrote."""
    output = tmp_path / "verified.json"
    values = {"runs": str(tmp_path / "run"), "output": str(output), **overrides}
    config = load_config(None, "verify", **values)
    try:
        verify.run(config_lib.load(config.to_dict()), "")
    finally:
        found = json.loads(output.read_text())["folders"] if output.exists() else []
    return found


def problems(tmp_path, **overrides):
    """What is wrong with the only folder, which is refused."""
    with pytest.raises(UserError, match="NOT verified: 1 of 1 folder"):
        check(tmp_path, **overrides)
    return json.loads((tmp_path / "verified.json").read_text())["folders"][0][
        "problems"
    ]


def export(run, target="huggingface", step="milestones"):
    config = load_config(target, "convert", init_from=str(run), step=step)
    folder = run.parent / "exported"
    convert.run(config_lib.load(config.to_dict()), str(folder))
    shutil.rmtree(run)
    return folder.rename(run)


def test_a_run_is_verified_to_the_bit(run, tmp_path, capsys):
    [member] = check(tmp_path, losses=3, retrain_step="4")
    assert "Verified: 1 folder with 6 saved states." in capsys.readouterr().out
    assert (member["kind"], member["seed"], member["problems"]) == (
        "transformer",
        3,
        [],
    )
    assert [row["step"] for row in member["steps"]] == list(STEPS)
    again = [row["step"] for row in member["steps"] if "valid_loss_again" in row]
    assert again == [0, 2, 12]
    for row in member["steps"]:
        assert row.get("valid_loss_again", row["valid_loss"]) == row["valid_loss"]
    trained = member["trained_again"]
    assert trained == {"from": 4, "to": 8, "bit_for_bit": True, "difference": 0.0}


def test_distances_are_norms_of_differences(run, tmp_path):
    [member] = check(tmp_path)
    read = {s: verify.read_params(epath.Path(run), s).params for s in (0, 4, 8)}

    def norm(one, other):
        leaves = zip(*map(jax.tree.leaves, (one, other)), strict=True)
        return np.sqrt(sum(np.sum((a.astype(float) - b) ** 2) for a, b in leaves))

    row = next(row for row in member["steps"] if row["step"] == 8)
    assert row["from_first"] == pytest.approx(norm(read[0], read[8]))
    assert row["from_before"] == pytest.approx(norm(read[4], read[8]))


def swap(checkpoints):
    (checkpoints / "4").rename(checkpoints / "x")
    (checkpoints / "8").rename(checkpoints / "4")
    (checkpoints / "x").rename(checkpoints / "8")


def flip_byte(checkpoints):
    files = [
        path for path in (checkpoints / "4" / "state").rglob("*") if path.is_file()
    ]
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[100] ^= 1
    largest.write_bytes(content)


def copy(checkpoints):
    shutil.rmtree(checkpoints / "8")
    shutil.copytree(checkpoints / "4", checkpoints / "8")


def copy_and_forge(checkpoints, **changes):
    """Also what the metadata says, with new checksums."""
    copy(checkpoints)
    file = checkpoints / "8" / "metadata" / "metadata"
    metadata = {**json.loads(file.read_text()), "data": {"next_index": 8}, **changes}
    file.write_text(json.dumps(metadata))
    manifest = checkpoints / "8" / "manifest.json"
    sums = {**json.loads(manifest.read_text()), "metadata/metadata": sha256(file)}
    manifest.write_text(json.dumps(sums))


def forge_digest(checkpoints):
    copy_and_forge(checkpoints, params_digest="0" * 64)


def delete(checkpoints):
    shutil.rmtree(checkpoints / "4")


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (
            swap,
            [
                "step 4: holds the state of step 8",
                "step 8: holds the state of step 4",
            ],
        ),
        (flip_byte, ["step 4: .* is damaged: .* differs from what was saved"]),
        (
            copy,
            [
                "step 8: holds the state of step 4",
                "step 8: holds the same parameters as step 4",
            ],
        ),
        (copy_and_forge, ["step 8: holds the same parameters as step 4"]),
        (
            forge_digest,
            [
                "step 8: holds parameters with digest .*, not 000000000000, with which",
                "step 8: holds the same parameters as step 4",
            ],
        ),
        (delete, ["step 4 is missing, a milestone"]),
        (shutil.rmtree, ["it holds no saved step"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_run_is_found_out(run, tmp_path, harm, found):
    harm(run / "checkpoints")
    if harm is shutil.rmtree:
        (run / "checkpoints").mkdir()
    told = problems(tmp_path)
    assert len(told) == len(found)
    for line, pattern in zip(told, found, strict=True):
        assert re.search(pattern, line), line


def test_a_milestone_of_tokens_that_is_missing_is_named(
    tiny_config, made_once, tmp_path
):
    amounts = (0, 384, 640, 10**9)
    config = tiny_config(checkpoint__milestone_tokens=amounts, seed=3)
    made = made_once("in_tokens", lambda folder: pretrain.run(config, str(folder)))
    folder = shutil.copytree(made, tmp_path / "run")
    [member] = check(tmp_path)
    steps = [row["step"] for row in member["steps"]]
    shutil.rmtree(folder / "checkpoints" / str(steps[1]))
    assert problems(tmp_path) == ["384 tokens is missing, a milestone"]


def test_one_broken_member_does_not_hide_the_others(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "runs" / "a")
    shutil.copytree(run, tmp_path / "runs" / "b")
    (tmp_path / "runs" / "a" / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"NOT verified: 1 of 2 folders: .*/a\."):
        check(tmp_path, runs=str(tmp_path / "runs"))
    said = capsys.readouterr().out
    assert "WRONG: " in said and "runs/b (transformer, seed 3)" in said


def test_another_loss_in_the_metrics_is_found_out(run, tmp_path):
    metrics = run / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    for record in records:
        if record["step"] == 12 and "valid_loss" in record:
            record["valid_loss"] -= 0.01
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert check(tmp_path)[0]["problems"] == []
    [problem] = problems(tmp_path, losses=1)
    assert problem.startswith("step 12: has validation loss")


def test_another_training_is_found_out(run, tmp_path, monkeypatch):
    """As if step 8 were of a run with other masks."""

    def train_again(run, *steps):
        return trajectory.train_again(dataclasses.replace(run, seed=99), *steps)

    monkeypatch.setattr(verify, "train_again", train_again)
    [problem] = problems(tmp_path, retrain_step="4")
    assert "trained again from step 4, the parameters differ by" in problem


def test_a_text_that_has_changed_is_named(run, tmp_path, corpus_dir):
    other = shutil.copytree(corpus_dir / "texts", tmp_path / "texts")
    (other / "3.txt").write_text("some other words\n" * 40)
    [problem] = problems(tmp_path, losses=1, data__train=str(other))
    assert (
        problem.startswith("nothing could be computed again: ") and "3.txt" in problem
    )
    assert check(tmp_path)[0]["problems"] == []  # without the text


@pytest.mark.parametrize("step", ["3", "12"])
def test_a_step_to_train_from_needs_a_milestone_after_it(run, tmp_path, step):
    [problem] = problems(tmp_path, retrain_step=step)
    assert f"config.retrain_step='{step}' must be a sound saved step" in problem


@pytest.mark.parametrize("target", ["huggingface", "openai"])
def test_an_export_carries_the_digests_of_the_training(run, tmp_path, target):
    [before] = check(tmp_path)
    export(run, target)
    [after] = check(tmp_path)
    assert [(row["step"], row["params_digest"]) for row in after["steps"]] == [
        (row["step"], row["params_digest"]) for row in before["steps"]
    ]


def test_a_digest_can_be_computed_without_this_package(run, tmp_path):
    """As docs/suite.md shows it."""
    [before] = check(tmp_path)
    folder = export(run)
    file = folder / "chck_8_steps" / "model.safetensors"
    page = (ROOT / "docs" / "suite.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(block, names)
    assert names["params_digest"](file) == before["steps"][4]["params_digest"]


def test_a_broken_export_is_found_out(run, tmp_path):
    folder = export(run)
    shutil.rmtree(folder / "chck_8_steps")
    shutil.copytree(folder / "chck_4_steps", folder / "chck_8_steps")
    content = bytearray((folder / "chck_2_steps" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "chck_2_steps" / "model.safetensors").write_bytes(content)
    shutil.rmtree(folder / "chck_12_steps")
    told = "\n".join(problems(tmp_path))
    assert "chck_8_steps: holds the same parameters as chck_4_steps" in told
    assert "chck_2_steps: model.safetensors differs from what was exported" in told
    assert "chck_2_steps: holds parameters with digest" in told
    assert "chck_12_steps" in told and "chck_0_steps" not in told


def test_a_branch_that_lies_alone_says_which_state_it_is(run, tmp_path, capsys):
    folder = export(run)
    shutil.copytree(folder / "chck_4_steps", tmp_path / "alone" / "main")
    shutil.copytree(folder / "chck_4_steps", tmp_path / "alone" / "chck_8_steps")
    check(tmp_path, runs=str(tmp_path / "alone" / "main"))
    assert "| main, step 4 | as saved |" in capsys.readouterr().out
    told = problems(tmp_path, runs=str(tmp_path / "alone" / "chck_8_steps"))
    assert told == ["chck_8_steps: holds the state of step 4, chck_4_steps"]


def test_a_run_of_an_earlier_version_is_exported_with_digests(run, tmp_path):
    """Its metadata has none; then they are those of what is exported."""
    for step in STEPS:
        checkpoint = run / "checkpoints" / str(step)
        file = checkpoint / "metadata" / "metadata"
        metadata = json.loads(file.read_text())
        del metadata["params_digest"]
        file.write_text(json.dumps(metadata))
        sums = json.loads((checkpoint / "manifest.json").read_text())
        sums["metadata/metadata"] = sha256(file)
        (checkpoint / "manifest.json").write_text(json.dumps(sums))
    [before] = check(tmp_path)
    folder = export(run)
    shutil.copytree(folder / "chck_4_steps", tmp_path / "alone")
    [after] = check(tmp_path, runs=str(tmp_path / "alone"))
    assert after["steps"][0]["step"] == 4
    assert after["steps"][0]["params_digest"] == before["steps"][3]["params_digest"]


@pytest.mark.parametrize("name", ["../other", "/etc", 7])
def test_a_table_that_leads_elsewhere_is_refused(run, tmp_path, name):
    folder = export(run)
    table = json.loads((folder / "trajectory.json").read_text())
    table["steps"]["4"]["name"] = name
    (folder / "trajectory.json").write_text(json.dumps(table))
    [problem] = problems(tmp_path)
    assert "is no table of a trajectory" in problem


def test_what_was_found_does_not_replace_a_file_of_the_run(run, tmp_path):
    before = (run / "config.json").read_bytes()
    with pytest.raises(FileExistsError, match=r"config\.json is in the run folder"):
        check(tmp_path, output=str(run / "config.json"))
    assert (run / "config.json").read_bytes() == before


def test_a_folder_without_a_run_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(FileNotFoundError, match=r"neither a run with checkpoints nor"):
        check(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no such folder"):
        check(tmp_path, runs=str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"retrain_step='x' must be the number"):
        check(tmp_path, retrain_step="x")
