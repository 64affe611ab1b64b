import shutil

import pytest
from etils import epath

from gpt1_jax.runs import checkpoints
from gpt1_jax.runs.checkpoint_files import (
    LOWEST_LOSS,
    delete_checkpoint,
    write_score,
)


@pytest.fixture
def copied(pretrained, tmp_path):
    shutil.copytree(pretrained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def deleting(copied, monkeypatch):
    """`deleting(8, 4)`: the training deletes these once their files were checked.

    The run has steps 4, 8 and 12, of which 8 is the best.
    """
    shutil.copytree(copied / "checkpoints/8", copied / "checkpoints/4")
    for step, loss in ((4, 3.0), (8, 1.0), (12, 2.0)):
        write_score(epath.Path(copied / f"checkpoints/{step}"), LOWEST_LOSS, loss)

    def start(*steps):
        check = checkpoints.check_files

        def check_and_delete(checkpoint, *args):
            check(checkpoint, *args)
            if int(checkpoint.name) in steps:
                delete_checkpoint(checkpoint)

        monkeypatch.setattr(checkpoints, "check_files", check_and_delete)
        return str(copied)

    return start
