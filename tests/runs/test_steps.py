import pytest

from gpt1_jax.config import ALL
from gpt1_jax.runs.steps import each_step, open_steps


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
