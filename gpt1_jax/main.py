"""The one door: `python -m gpt1_jax.main --config=configs/NAME.py[:preset]`.

Kept short: logic that can be tested is in the package. Heavy imports wait until the
flags are read, so that worker processes, which import this file again, start fast.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from absl import app, flags, logging
from ml_collections import config_flags

from gpt1_jax import config as config_lib

_CONFIG = config_flags.DEFINE_config_file(
    "config", help_string="The job: a file of configs/, with :preset if it takes one."
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "The run folder, local or gs://; default runs/JOB/PRESET."
)
_DISTRIBUTED = flags.DEFINE_enum(
    "distributed",
    "auto",
    ["auto", "on", "off"],
    "Whether to join the processes of a multi-host run; auto asks the environment.",
)
_JOBS = {  # the module whose run(config, workdir) does the job
    "pretrain": "gpt1_jax.training.pretrain",
    "finetune": "gpt1_jax.evaluation.suite",
    "predict": "gpt1_jax.evaluation.predict",
}


def main(argv: Sequence[str]) -> None:
    """Runs the job of the configuration; errors of the user's take one line."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {list(argv[1:])}")
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    try:
        config = config_lib.from_config_dict(_CONFIG.value.to_dict())
        workdir = _WORKDIR.value or os.path.join("runs", config.job, config.preset)

        from gpt1_jax.parallel.processes import initialize_processes
        from gpt1_jax.training import loop

        initialize_processes(_DISTRIBUTED.value)
        job = importlib.import_module(_JOBS[config.job])
        try:
            job.run(config, workdir)
        except loop.Stopped as stopped:
            print(f"gpt1_jax: {stopped} Run the same command again to go on.")
            sys.exit(loop.EXIT_STOPPED)
    except KeyboardInterrupt:
        sys.exit("gpt1_jax: interrupted; nothing half-made was left behind.")
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        if logging.level_debug():
            raise
        sys.exit(f"gpt1_jax: error: {error}\n(--verbosity=1 shows where it arose)")


def run() -> None:
    """Entry point of `python -m gpt1_jax.main`."""
    flags.mark_flag_as_required("config")
    app.run(main)


if __name__ == "__main__":
    run()
