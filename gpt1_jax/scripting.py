"""The jobs as functions, for scripts: `defaults`, `pretrain`, `finetune`."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import ml_collections
from etils import epath

from gpt1_jax import addresses
from gpt1_jax import config as config_lib
from gpt1_jax.config import usage
from gpt1_jax.config.checks import check_encodable, places
from gpt1_jax.config.saved import read_json
from gpt1_jax.data import files
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.results import ALL_RESULTS_FILE, kept_run, read_errors
from gpt1_jax.ops.settings import own_settings
from gpt1_jax.runs.folder import locate_run
from gpt1_jax.runs.run_folder import RunFolder
from gpt1_jax.tasks.paper_tasks import ALL, find_task
from gpt1_jax.trained_model import TrainedModel, load

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
      folder: its folder.
      scores: of pre-training the last record of validation (`valid_loss`, nats a token,
        `valid_perplexity`, `valid_bits_per_word`, and its `step`); of fine-tuning what
        `results.json` holds, or of several runs what `all_results.json` holds of them.
    """

    folder: str
    scores: dict[str, Any]

    @functools.cached_property
    def model(self) -> TrainedModel:
        """The model: of fine-tuning at its best step, of pre-training at its last.

        Raises:
          FileNotFoundError: naming the runs, if several keep their checkpoints.
        """
        return load(kept_run(self.folder))

    @functools.cached_property
    def errors(self) -> "pd.DataFrame":
        """The wrong predictions for the dev split of fine-tuning, the surest first.

        Of several runs, those of the one with a checkpoint. A row has the example's
        "id", its texts by column if the task is one's own, its "label", the
        "prediction", "confidence" as `gpt1_jax.finetuning.results.read_errors` has it,
        and for each label "P(LABEL)".

        Raises:
          FileNotFoundError: if this is not a fine-tuned run, or several keep their
            checkpoints.
          UserError: if the file of predictions is damaged.
        """
        import pandas as pd  # it takes a third of a second

        run = RunFolder(locate_run(kept_run(self.folder)))
        rows = []
        for row in read_errors(run.folder, "dev", find_task(run.config)):
            shares = row.get("probabilities", {}).items()
            answer = {key: row[key] for key in ("label", "prediction", "confidence")}
            answer |= {f"P({name})": share for name, share in shares}
            rows.append({"id": row["id"], **row.get("text", {}), **answer})
        return pd.DataFrame(rows)


def defaults(job: str) -> ml_collections.ConfigDict:
    """See `gpt1_jax.defaults`."""
    name, _, preset = job.partition(":")
    path = usage.CONFIGS / f"{name}.py"
    if not path.exists():
        known = ", ".join(each.stem for each in usage.own_files())
        raise UserError(f"There is no job {name!r}; there are {known}.")
    return usage.get_config(path, preset)


def pretrain(
    config: ml_collections.ConfigDict, folder: epath.PathLike = ""
) -> RunResult:
    """See `gpt1_jax.pretrain`."""
    run = _run("pretrain", config, folder)
    records = [record for record in run.records if "valid_loss" in record]
    return RunResult(os.fspath(run.folder), dict(records[-1]))


def finetune(
    config: ml_collections.ConfigDict, folder: epath.PathLike = ""
) -> RunResult:
    """See `gpt1_jax.finetune`."""
    run = _run("finetune", config, folder)
    scores, runs = run.results, len(config.tasks) * len(config.seeds)
    if runs > 1 or config.suite.compare or scores is None:
        scores = _asked_for(read_json(run.folder / ALL_RESULTS_FILE), config)
    return RunResult(os.fspath(run.folder), dict(scores))


def _asked_for(
    everything: Mapping[str, Any], config: ml_collections.ConfigDict
) -> dict[str, Any]:
    """The results of a command's own runs, of all in a folder that others may share."""
    tasks = everything if tuple(config.tasks) == (ALL,) else config.tasks
    own = {
        task: {
            variant: [each for each in results if each["seed"] in config.seeds]
            for variant, results in variants.items()
        }
        for task, variants in everything.items()
        if task in tasks
    }
    return {task: {k: v for k, v in own[task].items() if v} for task in own}


def _run(
    job: str, config: ml_collections.ConfigDict, folder: epath.PathLike
) -> RunFolder:
    """Does a job; its folder."""
    values = config.to_dict()
    if values.get("job") != job:
        raise UserError(
            f"config.job={values.get('job')!r}, but this is gpt1_jax.{job}; start from "
            f"gpt1_jax.defaults({job!r})."
        )
    loaded = addresses.resolve(config_lib.load(values))
    for key, path, local in places(loaded):
        files.locate(path, key, local=local)
    workdir = os.fspath(folder) or loaded.default_workdir
    check_encodable(workdir, "folder")
    with _job_settings(loaded.train.matmul_precision):
        config_lib.find_job(job).import_module().run(loaded, workdir)
    return RunFolder(locate_run(workdir))


@contextlib.contextmanager
def _job_settings(matmul_precision: str) -> Iterator[None]:
    """A job's settings of JAX; afterwards the caller's are as they were.

    The precision is the thread's, so that `devices.configure` need not set the
    process's.
    """
    cache = jax.config.values["jax_compilation_cache_dir"]
    try:
        with own_settings(), jax.default_matmul_precision(matmul_precision):
            yield
    finally:
        jax.config.update("jax_compilation_cache_dir", cache)
