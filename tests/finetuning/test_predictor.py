from tiny_tasks import changed

from gpt1_jax.finetuning.predictor import make_head
from gpt1_jax.tasks.paper_tasks import TASKS


def test_make_head_fits_the_task():
    heads_made = {
        name: make_head(TASKS[name], 0.2, 94)
        for name in ("sst2", "mnli", "mrpc", "stsb", "race")
    }
    assert heads_made == {
        "sst2": (2, False, 0.2, 96),
        "mnli": (3, False, 0.2, 96),
        "mrpc": (2, False, 0.2, 96),
        "stsb": (6, False, 0.2, 96),
        "race": (4, True, 0.2, 96),
    }
    regression = changed(TASKS["stsb"], "target", score_loss="regression")
    assert make_head(regression, 0.1, 94) == (1, False, 0.1, 96)
