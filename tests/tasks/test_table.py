import pytest

from gpt1_jax.tasks.table import TASKS
from gpt1_jax.tasks.task import TRANSFORMS


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_tasks_are_whole(task):
    assert task.transform in TRANSFORMS
    assert bool(task.labels) != bool(task.score_range)
    assert bool(task.choices) == (task.transform == "multiple_choice")
    assert task.metrics
    assert set(task.tfds) == set(task.files)
    assert {"dev", "test"} <= set(task.files)
    for split, tables in task.files.items():
        assert list(tables) == list(task.tfds[split])
