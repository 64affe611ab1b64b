import json
import shutil

import jax
import numpy as np
import pytest
from tiny_run import saved_state

from gpt1_jax.config import FinetuneConfig, PretrainConfig
from gpt1_jax.runs.checkpoints import BEST
from gpt1_jax.runs.trained_run import open_run


@pytest.fixture
def copied(pretrained, tmp_path):
    shutil.copytree(pretrained, tmp_path / "run")
    return tmp_path / "run"


def test_a_pre_trained_run_is_all_that_was_saved(pretrained):
    run = open_run(str(pretrained))
    assert isinstance(run.config, PretrainConfig) and run.step == 12
    assert run.model.vocab_size == run.tokenizer.vocab_size
    assert run.model.max_seq_len == 40
    saved = saved_state(pretrained, 12)
    for path, leaf in jax.tree_util.tree_leaves_with_path(run.params):
        name = "['params']" + jax.tree_util.keystr(path)
        np.testing.assert_array_equal(leaf, saved[name])


def test_a_fine_tuned_run_has_the_special_tokens_too(finetuned):
    run = open_run(str(finetuned), BEST)
    assert isinstance(run.config, FinetuneConfig)
    assert run.model.vocab_size == run.tokenizer.vocab_size + 3
    assert run.params["transformer"]["wte"].shape[0] == run.model.vocab_size


def test_a_folder_may_be_moved(copied, tmp_path):
    copied.rename(tmp_path / "elsewhere")
    assert open_run(str(tmp_path / "elsewhere")).step == 12


def test_nothing_is_read_or_written_where_a_strangers_folder_says(copied, tmp_path):
    """Least of all compiled programs, which would be executed."""
    config = json.loads((copied / "config.json").read_text())
    planted = tmp_path / "planted"
    config["train"]["compilation_cache_dir"] = str(planted)
    config["data"]["cache_dir"] = str(planted)
    (copied / "config.json").write_text(json.dumps(config))
    run = open_run(str(copied))
    assert run.config.train.compilation_cache_dir == ""
    assert run.config.data.cache_dir == ""


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"job": "predict"}', "{"])
def test_another_configuration_file_is_one_error(copied, text):
    (copied / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        open_run(str(copied))


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a run folder.*runs/pretrain"):
        open_run(str(tmp_path))
