"""Folders whose names other programs take for patterns, separators or options."""

import shutil

import pytest
from tiny_run import job_config, stopped_after
from tiny_tasks import finetune_config

import gpt1_jax
from gpt1_jax.config.checks import split_paths
from gpt1_jax.data.corpus import prepare_corpus
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import convert, finetune, pretrain


def test_a_run_with_an_odd_name_is_saved_resumed_and_read(tiny_config, tmp_path):
    folder = tmp_path / "a]b {c,d} #%20" / "-x:é\n\t'\"$~" / ".hidden "
    for step in (1, 2):
        with stopped_after(step):
            pretrain.run(tiny_config(), str(folder))
        assert (folder / f"checkpoints/{step}/manifest.json").exists()
    assert not (folder / "damaged_checkpoints").exists()
    assert split_paths(str(folder)) == [str(folder)]
    assert gpt1_jax.load(str(folder)).run.step == 2


@pytest.mark.parametrize("name", ["a[1]", "st*r", "a?b", "a\\b"])
def test_checkpoints_are_not_saved_where_a_name_is_taken_for_another(
    name, tiny_config, pretrained, finetune_base, tmp_path
):
    """By each job that saves some, before any work; what lies beside is untouched."""
    jobs = {
        pretrain: tiny_config(),
        finetune: finetune_config("sst2", finetune_base),
        convert: job_config("convert", "run", init_from=str(pretrained)),
    }
    for job, config in jobs.items():
        with pytest.raises(UserError, match=r"cannot be saved.* another --workdir"):
            job.run(config, str(tmp_path / name / "run"))
    assert not list(tmp_path.iterdir())


def test_a_run_that_was_moved_to_a_pattern_is_read(pretrained, tmp_path):
    folder = shutil.copytree(pretrained, tmp_path / "a[1]*?" / "run")
    assert gpt1_jax.load(str(folder)).run.step == 12
    folder = shutil.copytree(pretrained, tmp_path / "a\\b")
    with pytest.raises(UserError, match=r"a\\b: .* cannot be read .* for /; rename"):
        gpt1_jax.load(str(folder))


def test_a_corpus_is_prepared_and_found_again_where_the_cache_is_a_pattern(
    tiny_config, tmp_path
):
    cache = {"data__cache_dir": str(tmp_path / "a[1]*\\" / "cache")}
    configs = tiny_config(**cache), tiny_config(**cache), tiny_config()
    corpora = [prepare_corpus(each.data, each.tokenizer)[0] for each in configs]
    assert len({corpus.digest for corpus in corpora}) == 1
