"""The estimate of what fine-tuning takes, by hand."""

import json

import pytest
from made_up_tokenizer import Characters
from tiny_tasks import finetune_config, write_lines

from benchmarks.compiler import finetuning_cost
from benchmarks.compiler.finetuning_cost import Line, Sizes
from gpt1_jax.tasks.paper_tasks import TASKS

BATCHES = [(64, 400), (64, 700), (64, 400)]


@pytest.fixture
def config(tmp_path):
    base = {"init_from": "run", "data.source": "jsonl", "data.dir": str(tmp_path)}
    return finetune_config("all", base)


def test_the_time_of_a_step_lies_on_the_line_through_two(tmp_path):
    files = []
    for seq_len, played in (
        (64, {"kernel_seconds": 0.003}),
        (512, {"kernel_seconds": 0.016, "idle_seconds": 0.001}),
    ):
        step = {"batch": 32, "schedule": played}
        found = {"settings": {"seq_len": seq_len}, "results": {"finetune": step}}
        files.append(tmp_path / f"{seq_len}.json")
        files[-1].write_text(json.dumps(found))
    steps = [finetuning_cost.read_step(path, 0.0) for path in files]
    assert steps == [(2048, 0.003), (16384, pytest.approx(0.017))]
    line = finetuning_cost.line_through(*steps)
    assert line(2048) == pytest.approx(0.003) and line(0) == pytest.approx(0.001)
    assert line(16384) == pytest.approx(0.017)
    own = [finetuning_cost.read_step(path, 6.4)[1] for path in files]
    assert own == pytest.approx([0.003 + 0.0001, 0.017 + 0.0064])


def test_an_epoch_leaves_out_its_last_batch_and_ends_with_an_evaluation(config):
    found = finetuning_cost.cost(Sizes(100, 10, 5), config, BATCHES, Line(0.1, 0.001))
    assert found["programs"] == 2 and found["tokens"] == 500
    assert found["steps"] == 9 and found["step_seconds"] == pytest.approx(0.6)
    assert found["train_seconds"] == pytest.approx(9 * 0.6)
    evaluated = 4 * 10 + 5  # after three epochs, then of the best step
    assert found["eval_seconds"] == pytest.approx(evaluated / 32 * 0.6 / 3)
    longer = Sizes(96_000, 10, 5)
    longer = finetuning_cost.cost(longer, config, BATCHES, Line(0.1, 0.001))
    evaluated = 6 * 10 + 5  # also after 1,000 and 2,000 updates of the first epoch
    assert longer["eval_seconds"] == pytest.approx(evaluated / 32 * 0.6 / 3)


def test_real_tokens_are_counted(config, tmp_path):
    """32 texts of 5 and 2 special tokens are 224, of 1,024 with padding."""
    rows = [{"sentence": "abcde", "label": 1, "idx": k} for k in range(64)]
    write_lines(tmp_path / "sst2" / "train.jsonl", rows)
    found = finetuning_cost.batch_sizes(TASKS["sst2"], config, Characters(), 64, 6)
    assert found == [(32, 224), (32, 224)]
