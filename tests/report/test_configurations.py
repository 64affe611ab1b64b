"""What differs from the files in configs/."""

import pytest
from etils import epath
from made_up_runs import write_finished, write_pretrained

from gpt1_jax.report.configurations import differences, one, several
from gpt1_jax.runs.past_runs import read_finished, read_pretrained


def test_only_what_differs_from_the_preset_is_shown(tmp_path):
    write_pretrained(tmp_path / "a", seed=3, data__source="text", data__train="<b>|*")
    config = read_pretrained(epath.Path(tmp_path / "a")).config
    assert differences(config) == {
        "seed": 3,
        "train.num_steps": 8,
        "optimizer.warmup_steps": 2,
        "data.source": "text",
        "data.train": "<b>|*",
    }
    text = one(config)
    assert "pretrain.py:quickstart" in text and "| train.num_steps | 8 |" in text
    assert r"| data.train | \<b\>\|\* |" in text


@pytest.mark.parametrize("preset", ["no such", "", "__import__"])
def test_an_unknown_preset_is_compared_with_the_default(tmp_path, preset):
    write_pretrained(tmp_path / "a", preset=preset)
    config = read_pretrained(epath.Path(tmp_path / "a")).config
    assert differences(config)["model.num_layers"] == 4  # 12 by default


def test_fine_tuned_runs_that_are_alike_stand_together(tmp_path):
    for number, (task, seed, rate) in enumerate(
        [("sst2", 0, 1e-4), ("sst2", 1, 1e-4), ("cola", 0, 1e-4), ("cola", 0, 2e-4)]
    ):
        write_finished(
            tmp_path / str(number), task, seed=seed, optimizer__learning_rate=rate
        )
    text = several([read_finished(epath.Path(tmp_path / str(k))) for k in range(4)])
    groups, shared = text.split("\n\nAll of them:\n\n")
    assert groups.splitlines()[0] == "| tasks (seeds) | optimizer.learning_rate |"
    assert groups.splitlines()[2:] == [
        "| sst2 (0, 1); cola (0) | 0.0001 |",
        "| cola (0) | 0.0002 |",
    ]
    assert "| init_from | runs/pretrain/small |" in shared
    assert "num_layers" not in text and "suite." not in text


def test_a_value_of_the_file_stands_beside_one_that_differs(tmp_path):
    for number, weight in enumerate([0.5, 0.0]):  # 0.5 is the file's
        write_finished(tmp_path / str(number), "sst2", head__aux_lm_weight=weight)
    text = several([read_finished(epath.Path(tmp_path / str(k))) for k in range(2)])
    assert text.splitlines()[2:4] == ["| sst2 (0) | 0.5 |", "| sst2 (0) | 0.0 |"]


def test_a_run_with_the_values_of_the_file_says_so(tmp_path):
    given = {"train__num_steps": 1500, "optimizer__warmup_steps": 150}
    write_pretrained(tmp_path / "a", **given)
    config = read_pretrained(epath.Path(tmp_path / "a")).config
    assert one(config).endswith("All values are those of the file.")
