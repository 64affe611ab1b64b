"""The estimate of what fine-tuning takes, by hand."""

import pytest
from tiny_tasks import finetune_config

from benchmarks.compiler import finetuning_cost
from benchmarks.compiler.finetuning_cost import Line, Sizes

BATCHES = [(64, 400), (64, 700), (64, 400)]


@pytest.fixture
def config(tmp_path):
    base = {"init_from": "run", "data.source": "jsonl", "data.dir": str(tmp_path)}
    return finetune_config("all", base)


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
