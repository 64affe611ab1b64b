import shutil

import pytest
from etils import epath
from other_formats import assert_same_params

from gpt1_jax.interop.run_folder import save_params
from gpt1_jax.runs.checkpoint_files import check_files, saved_steps
from gpt1_jax.runs.open import open_run


def test_saved_params_make_a_run_folder(pretrained, tmp_path):
    source, folder = open_run(str(pretrained)), epath.Path(tmp_path / "made")
    save_params(str(folder), source.params, source.tokenizer, source.config, step=7)
    made = open_run(str(folder))
    assert made.step == 7 and saved_steps(folder) == [7]
    assert made.model == source.model
    assert made.tokenizer.digest == source.tokenizer.digest
    assert_same_params(made.params, source.params)
    check_files(folder / "checkpoints" / "7")
    found = sorted(path.name for path in folder.iterdir())
    assert found == ["checkpoints", "config.json", "tokenizer"]


def test_saved_params_overwrite_nothing(pretrained, tmp_path):
    source = open_run(str(pretrained))
    copied = shutil.copytree(pretrained, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    with pytest.raises(FileExistsError, match=r"holds checkpoints, .* nothing there"):
        save_params(str(copied), source.params, source.tokenizer, source.config)
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


def test_params_that_cannot_be_saved_leave_nothing(pretrained, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("No space left on device")

    source = open_run(str(pretrained))
    monkeypatch.setattr("gpt1_jax.interop.run_folder.Checkpoints.save", fail)
    made = source.params, source.tokenizer, source.config
    with pytest.raises(OSError, match=r"No space"):
        save_params(str(tmp_path / "made"), *made)
    assert list(tmp_path.iterdir()) == []
