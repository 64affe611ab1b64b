"""Which saved steps a configured step means, and how they are opened."""

import pytest
from etils import epath

from gpt1_jax.config.checks import ALL, NEWEST
from gpt1_jax.data.files import write_json
from gpt1_jax.runs.milestones import Milestone
from gpt1_jax.runs.steps import (
    each_step,
    find_steps,
    milestone_revision,
    open_steps,
)


def save(folder, metadata):
    """What is read of saved steps: what was saved beside their states."""
    for step, values in metadata.items():
        saved = folder / "checkpoints" / str(step) / "metadata"
        saved.mkdir(parents=True)
        write_json(epath.Path(saved) / "metadata", values)


def test_all_steps_or_the_milestones_may_be_meant(tmp_path):
    folder = epath.Path(tmp_path)
    assert find_steps(folder, "all") == find_steps(folder, "milestones") == [NEWEST]
    kept = {step: {"milestone": {"amount": step, "unit": "steps"}} for step in (10, 4)}
    save(tmp_path, {**kept, 9: {}})
    assert find_steps(folder, "all") == [4, 9, 10]
    assert find_steps(folder, "milestones") == [4, 10]
    assert find_steps(folder, "best") == ["best"] and find_steps(folder, "10") == ["10"]


def test_a_run_that_kept_no_step_is_refused_by_name(tmp_path):
    save(tmp_path, {3: {}, 12: {}})
    with pytest.raises(FileNotFoundError) as error:
        find_steps(epath.Path(tmp_path), "milestones")
    assert str(error.value).startswith(f"{tmp_path} holds no milestone")
    assert "keep them); its saved steps are [3, 12]" in str(error.value)


@pytest.mark.parametrize(
    ("unit", "name"),
    [("words", "chck_2.5M"), ("tokens", "chck_2.5M_tokens")],
)
def test_exports_have_the_names_of_babylm(unit, name):
    assert milestone_revision(Milestone(2_500_000, unit)) == name


@pytest.mark.parametrize("gone", [[], [4], [8], [12], [4, 12]])
def test_steps_that_the_training_deletes_are_left_out(deleting, capsys, gone):
    first, steps = open_steps(deleting(*gone), ALL)
    assert [run.step for run in each_step(first, steps)] == [
        step for step in (4, 8, 12) if step not in gone
    ]
    said = "".join(capsys.readouterr())
    assert said.count("was deleted meanwhile, and is left out") == len(gone)


def test_the_steps_that_are_read_are_said_beside_the_output(pretrained, capsys):
    open_steps(str(pretrained), ALL)
    out, err = capsys.readouterr()
    assert not out
    assert err == f"Reading all saved steps (8, 12) of {pretrained}.\n"
    open_steps(str(pretrained), "8")
    assert "Reading step 8, as asked for, of" in capsys.readouterr().err
