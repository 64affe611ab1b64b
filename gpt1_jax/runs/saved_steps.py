"""Opens a run at one or several of its saved steps, as a job asks for them."""

import os
from collections.abc import Iterator, Mapping, Sequence

from etils import epath

from gpt1_jax.config.checks import ALL, MILESTONES, NEWEST
from gpt1_jax.runs.checkpoint_files import NoCheckpoint
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import locate_run
from gpt1_jax.runs.milestones import Milestone, saved_milestones
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read
from gpt1_jax.runs.run_folder import RunFolder


def find_steps(
    run: RunFolder, step: str, *, named: bool = False
) -> Sequence[int | str]:
    """The steps that a configured step means, as `open_run` takes them.

    Args:
      run: the run.
      step: `ALL`, `MILESTONES` (with the newest step, milestone or not), or what
        `open_run` takes.
      named: whether milestones alone are meant, which have names.

    Raises:
      FileNotFoundError: if milestones are asked for and there is none.
    """
    if step not in (ALL, MILESTONES):
        return [step]
    if step == MILESTONES and run.saved:
        milestones = find_milestones(run)
        return sorted({*milestones} if named else {*milestones, run.saved[-1]})
    return run.saved or [NEWEST]  # `open_run` refuses a run without any


def find_milestones(run: RunFolder) -> Mapping[int, Milestone]:
    """The milestones that it has saved, by step; there must be one.

    Raises:
      FileNotFoundError: if there is none.
    """
    found = saved_milestones(run.folder)
    if not found:
        raise FileNotFoundError(
            f"{run.folder} holds no milestone (config.checkpoint.milestone_words, "
            "milestone_tokens or milestone_steps keep them); its saved steps are "
            f"{run.saved}."
        )
    return found


def open_steps(
    init_from: str, step: str, *, named: bool = False
) -> tuple[TrainedRun, list[int]]:
    """Opens a run at the first of the configured steps, and says which they are.

    Args:
      init_from: the run folder.
      step, named: the configured step, which may mean several: see `find_steps`.

    Returns:
      The run at the first step, and the numbers of all steps.

    Raises:
      FileNotFoundError, UserError: as `find_steps` and `open_run`.
    """
    folder = locate_run(init_from)
    steps = find_steps(RunFolder(folder), step, named=named)
    first = next(_open_each(folder, steps[:-1]), None) or open_run(init_from, steps[-1])
    if len(steps) > 1:
        steps = steps[steps.index(first.step) :]
    which = ""
    milestones = "the milestones" if named else "the milestones and the newest step"
    if several := {ALL: "all saved steps", MILESTONES: milestones}.get(step):
        which = f"{several} ({', '.join(f'{each:,}' for each in steps)})"
    say_what_is_read(first, which)
    return first, [first.step, *map(int, steps[1:])]


def each_step(first: TrainedRun, steps: Sequence[int]) -> Iterator[TrainedRun]:
    """The run at each step in turn; only the first is open from the beginning.

    A step that the training deletes meanwhile is left out, with a line that says so.
    """
    for step in steps:
        yield from [first] if step == first.step else _open_each(first.folder, [step])


def _open_each(folder: epath.Path, steps: Sequence[int | str]) -> Iterator[TrainedRun]:
    for step in steps:
        try:
            opened = open_run(os.fspath(folder), step)
        except NoCheckpoint:
            say(
                f"Step {step} of {folder} was deleted meanwhile, and is left out.",
                beside_output=True,
            )
        else:
            yield opened
