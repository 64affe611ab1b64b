"""The configurations of the jobs that use a trained model."""

import pytest
from tiny_run import load_config

from gpt1_jax.config import load


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"output": "a.txt"}, r"config\.output='a\.txt' must end in \.jsonl"),
        ({"input": "a", "prompt": "b"}, r"config\.prompt='b' and config\.input='a'"),
        ({"log_probs": True}, r"--config\.output=FILE\.jsonl"),
        ({"seed": 2**32}, r"config\.seed=4294967296"),
        ({"seed": 2**32 - 1, "num_return_sequences": 2}, r"config\.seed=4294967296"),
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
    values = load_config("", file="generate", init_from="a", output=output).to_dict()
    values["sampling"]["stop_strings"] = ("a,b",)
    assert load(values).sampling.stop_strings == ("a,b",)
