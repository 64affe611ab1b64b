from tiny_tasks import changed

from gpt1_jax.finetuning.heads import Head
from gpt1_jax.finetuning.predictor import make_head
from gpt1_jax.tasks.paper_tasks import TASKS


def test_make_head_fits_the_task():
    found = {name: make_head(TASKS[name], 0.2, 94) for name in ("mnli", "stsb", "race")}
    assert found == {
        "mnli": Head(3, False, 0.2, 96),
        "stsb": Head(6, False, 0.2, 96),
        "race": Head(4, True, 0.2, 96),
    }
    regression = changed(TASKS["stsb"], "target", score_loss="regression")
    assert make_head(regression, 0.1, 94) == Head(1, False, 0.1, 96)
    several = changed(TASKS["mnli"], "target", multilabel=True)
    assert make_head(several, 0.1, 94) == Head(3, False, 0.1, 96, multilabel=True)
