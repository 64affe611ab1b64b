"""What every job does with the outputs that its user names."""

import importlib

import pytest
from tiny_run import load_config

from gpt1_jax import config as config_lib

TEXT = {"init_from": "no/run", "text": "a"}


@pytest.mark.parametrize(
    ("job", "values"),
    [
        ("features", {"init_from": "no/run", "input": "a.txt", "output": "OUT.npz"}),
        ("generate", {"init_from": "no/run", "prompt": "a", "output": "OUT.jsonl"}),
        ("predict", {**TEXT, "output": "OUT.csv"}),
        ("surprisal", {**TEXT, "output": "OUT.csv"}),
        ("surprisal", {**TEXT, "plot": "OUT.png"}),
        ("zero_shot", {"init_from": "no/run"}),
        ("convert", {"init_from": "no/run"}),
        ("report", {"runs": "no/run"}),
    ],
    ids=str,
)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    tmp_path, job, values
):
    (tmp_path / "file").touch()
    output = str(tmp_path / "file" / "out")
    values = {key: value.replace("OUT", output) for key, value in values.items()}
    config = config_lib.load(load_config("", file=job, **values).to_dict())
    run = importlib.import_module(f"gpt1_jax.jobs.{job}").run
    with pytest.raises(
        OSError, match=r"cannot be written .Not a directory.; name anot"
    ):
        run(config, output if config.writes_folder else "")
