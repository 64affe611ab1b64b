"""The configurations of the jobs that use a trained model."""

import pytest
from tiny_run import load_config

from gpt1_jax.config import load


def test_a_prediction_is_valid():
    values = load_config("", file="predict", init_from="run", text="a")
    config = load(values.to_dict())
    assert (config.job, config.batch_size) == ("predict", 64)


@pytest.mark.parametrize("job", ["predict", "generate", "convert"])
def test_a_model_has_to_be_named(job):
    values = load_config("run" if job == "convert" else "", file=job)
    with pytest.raises(ValueError, match=r"--config\.init_from="):
        load(values.to_dict())


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"output": "a.txt"}, r"config\.output='a\.txt' must end in \.jsonl"),
        ({"output": "/dev/shm/a"}, r"config\.output='/dev/shm/a' must end in"),
        ({"input": "a", "prompt": "b"}, r"config\.prompt='b' and config\.input='a'"),
        ({"log_probs": True}, r"--config\.output=FILE\.jsonl"),
        ({"seed": 2**32}, r"config\.seed=4294967296"),
        ({"seed": 2**32 - 1, "num_return_sequences": 2}, r"config\.seed=4294967296"),
        ({"num_return_sequences": 0}, r"config\.num_return_sequences=0 must be pos"),
        ({"dtype": "float16"}, r"config\.dtype='float16'.* '', float32, bfloat16"),
        ({"sampling__stop_strings": ("",)}, r"stop_strings=\(''\,\) holds an empty"),
    ],
    ids=str,
)
def test_generation_that_cannot_work_is_refused(overrides, problem):
    with pytest.raises(ValueError, match=problem):
        load(load_config("", file="generate", init_from="a", **overrides).to_dict())


@pytest.mark.parametrize("output", ["", "a.jsonl", "/dev/stdout"])
def test_generation_writes_a_file_a_device_or_nothing(output):
    given = {"init_from": "a", "seed": 2**32 - 1, "output": output}
    values = load_config("", file="generate", **given).to_dict()
    values["sampling"]["stop_strings"] = ("a,b",)
    assert load(values).sampling.stop_strings == ("a,b",)
