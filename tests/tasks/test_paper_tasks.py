"""The registry of tasks: its entries, and which of them a configuration names."""

import pytest
from tiny_tasks import finetune_config

from gpt1_jax.tasks.paper_tasks import TASKS, select_tasks


def test_glue_files_are_those_of_the_leaderboard():
    files = {}
    for task in TASKS.values():
        files |= dict(task.glue.files.values())
    assert files == {
        "CoLA.tsv": 1063,
        "SST-2.tsv": 1821,
        "MRPC.tsv": 1725,
        "STS-B.tsv": 1379,
        "QQP.tsv": 390965,
        "MNLI-m.tsv": 9796,
        "MNLI-mm.tsv": 9847,
        "QNLI.tsv": 5463,
        "RTE.tsv": 3000,
        "WNLI.tsv": 146,
        "AX.tsv": 1104,
    }
    # WNLI's data has numbers only, where 1 means that the second sentence follows.
    assert TASKS["wnli"].target.labels[1] == "entailment"


BASE = {"init_from": "runs/pretrain/tiny"}


def test_tasks_are_taken_in_the_order_named():
    config = finetune_config("rte+sst2+rte", BASE)
    tasks, resolved = select_tasks(config)
    assert [task.name for task in tasks] == ["rte", "sst2"]
    assert resolved == config
    assert tasks[0] is TASKS["rte"]


def test_all_is_every_task_of_the_paper():
    tasks, _ = select_tasks(finetune_config("all", BASE))
    assert " ".join(task.name for task in tasks) == (
        "snli mnli qnli sci_tail rte race story_cloze copa mrpc qqp stsb cola sst2 wnli"
    )
    others = [name for name in TASKS if TASKS[name] not in tasks]
    assert others[:3] == ["boolq", "multirc", "wsc"]
    assert not any(TASKS[name].glue.files for name in others)


@pytest.mark.parametrize("names", ["sst2+Sst2+rte", "sst2+all", "sst2+custom"])
def test_unknown_task_is_refused_with_the_list(names):
    with pytest.raises(ValueError, match="There is no task '") as raised:
        select_tasks(finetune_config(names, BASE))
    message = str(raised.value)
    assert "'sst2'" not in message.partition(";")[0], "only the unknown are named"
    for name in TASKS:
        assert name in message
    assert "or 'all' or 'custom' alone" in message
