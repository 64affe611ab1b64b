"""Reads the runs for a report from folders."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config import JOBS
from gpt1_jax.finetuning.results import Finished, read_finished
from gpt1_jax.report.studies import (
    Evaluation,
    Study,
    job_of_results,
    read_evaluation,
)
from gpt1_jax.runs.folder import locate_run
from gpt1_jax.runs.pretrained import Pretrained, read_pretrained
from gpt1_jax.runs.run_folder import RunFolder, find_folders, real_path


class ReportedRuns(NamedTuple):
    """The runs in a report, in the order of their folders, each folder once."""

    pretrained: Sequence[Pretrained]
    finetuned: Sequence[Finished]
    studies: Mapping[Study, Sequence[Evaluation]]


def read_runs(places: Sequence[str], studies: Mapping[str, Study]) -> ReportedRuns:
    """Reads the runs in folders and below them.

    Args:
      places: the folders.
      studies: by job, those outside of this package, as `find_studies` returns them.

    Raises:
      FileNotFoundError: if a folder is missing, or holds nothing for a report.
      ValueError: naming the file that is damaged.
    """
    roots = [locate_run(place) for place in places]
    for root in roots:
        if not root.is_dir():
            raise FileNotFoundError(
                f"config.runs names {root}, which is no folder; name folders of runs, "
                "or folders above them, as in --config.runs=runs/pretrain,runs/finetune"
            )
    below = [{real_path(each): each for each in find_folders(root)} for root in roots]
    different: dict[str, epath.Path] = {}
    for place, folder in itertools.chain(*(own.items() for own in below)):
        different.setdefault(place, folder)
    folders = different.values()
    pretrained = [run for folder in folders if (run := read_pretrained(folder))]
    finetuned = [tuned for folder in folders if (tuned := read_finished(folder))]
    evaluations: dict[Study, list[Evaluation]] = {}
    for folder in folders:
        if evaluation := read_evaluation(folder, studies):
            evaluations.setdefault(evaluation.study, []).append(evaluation)
    kinds: Iterable[Iterable[Any]] = (pretrained, finetuned, *evaluations.values())
    used = {real_path(run.folder) for of_kind in kinds for run in of_kind}
    for root, own in zip(roots, below, strict=True):
        if not used & own.keys():
            raise FileNotFoundError(
                f"{root} holds neither a pre-trained run, nor a finished fine-tuned "
                f"one, nor the scores of a study{_describe(root, own.values())}"
            )
    return ReportedRuns(pretrained, finetuned, evaluations)


def _describe(root: epath.Path, folders: Iterable[epath.Path]) -> str:
    """Why a report can show nothing of a folder; the end of a sentence."""
    folders = list(folders)
    if others := {job for each in folders if (job := job_of_results(each))} - {*JOBS}:
        return (
            f"; it holds results of the job {min(others)!r:.80}, which is unknown "
            "here: if that is a study of yours, name its module in config.studies."
        )
    if begun := [job for each in folders if (job := RunFolder(each).job)]:
        return (
            f" but a job {begun[0]!r:.80} without results: the command that began it "
            "goes on with it."
        )
    files = sorted(path.name for path in root.iterdir() if path.is_file())
    if files:
        return (
            f" but {', '.join(files[:3])}: a report shows scores, not tables of words, "
            "features, batches, pages or checks; leave it out of config.runs."
        )
    return "; leave it out of config.runs."
