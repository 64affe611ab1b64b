"""The saved steps of a run that a job means by "all" or "milestones"."""

from collections.abc import Sequence

from etils import epath

from gpt1_jax.config import ALL, MILESTONES, NEWEST
from gpt1_jax.runs.checkpoint_files import saved_steps
from gpt1_jax.runs.milestones import Milestone, saved_milestones


def find_steps(folder: epath.Path, step: str) -> Sequence[int | str]:
    """The steps that a configured step means, as `open_run` takes them.

    Args:
      folder: the run folder; `open_run` refuses one without a saved step.
      step: `ALL`, `MILESTONES`, or what `open_run` takes.

    Raises:
      FileNotFoundError: if milestones are asked for and there is none.
    """
    if step not in (ALL, MILESTONES):
        return [step]
    steps = saved_steps(folder)
    if step == MILESTONES and steps:
        return list(find_milestones(folder))
    return steps or [NEWEST]


def find_milestones(folder: epath.Path) -> dict[int, Milestone]:
    """The milestones that a run has saved; there must be one.

    Raises:
      FileNotFoundError: if there is none.
    """
    found = saved_milestones(folder)
    if not found:
        raise FileNotFoundError(
            f"{folder} holds no milestone (config.checkpoint.milestone_words, "
            "milestone_tokens or milestone_steps keep them); its saved steps are "
            f"{saved_steps(folder)}."
        )
    return found


def milestone_revision(milestone: Milestone) -> str:
    """The name of a milestone's export: chck_1M after words, as BabyLM has it."""
    end = {"words": "", "tokens": "_tokens", "steps": "_steps"}[milestone.unit]
    return f"chck_{milestone.short}{end}"
