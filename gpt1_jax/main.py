"""The entry point: `python -m gpt1_jax.main --config=configs/NAME.py[:preset]`.

Kept short: testable logic is in the other modules. Heavy imports wait until the flags
are read, so that worker processes, which import this file again, start fast.
"""

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from logging import Formatter
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm.contrib import DummyTqdmFile

from gpt1_jax import config as config_lib
from gpt1_jax.config import usage

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
    "Whether to join the processes of a multi-host run; auto: if there are several.",
)

_INTERRUPTED = threading.Event()


def main(argv: Sequence[str]) -> None:
    """Runs the job of the configuration; a user error prints one line."""
    if len(argv) > 1:
        _exit(
            f"unexpected arguments {list(argv[1:])}; set values with "
            "--config.section.key=value."
        )
    if not flags.FLAGS["verbosity"].present:
        _warn_plainly()
    try:
        config = config_lib.load(_CONFIG.value.to_dict())
        workdir = _WORKDIR.value or os.path.join("runs", config.job, config.preset)

        from gpt1_jax.parallel import processes
        from gpt1_jax.training import signals

        with signals.catch():
            processes.initialize_processes(_DISTRIBUTED.value)
            job = importlib.import_module(f"gpt1_jax.jobs.{config.job}")
            try:
                job.run(config, workdir)
            except signals.Stopped as stopped:
                print(f"gpt1_jax: {stopped} Run the same command again to resume.")
                sys.exit(signals.EXIT_STOPPED)
    except KeyboardInterrupt:
        _INTERRUPTED.set()
        sys.exit("gpt1_jax: interrupted; no partial files were left behind.")
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        if logging.level_debug():
            raise
        _exit(f"{error}\n(--verbosity=1 shows the traceback)")


def _skip_finalization() -> None:
    """The last exit handler: interrupted while it compiles, JAX crashes after it."""
    if _INTERRUPTED.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _warn_plainly() -> None:
    """Shows warnings alone, as lines that leave progress bars whole."""
    logging.set_verbosity(logging.WARNING)
    handler = logging.get_absl_handler().python_handler
    handler.setFormatter(Formatter("%(levelname)s: %(message)s"))
    handler.setStream(DummyTqdmFile(sys.stderr))


def _exit(problem: str) -> NoReturn:
    sys.exit(f"gpt1_jax: error: {problem}")


def _parse(argv: Sequence[str]) -> list[str]:
    """Reads the flags; a bad one prints one line, not the parser's traceback."""
    if {"-h", "-help", "--help", "--helpshort", "--helpfull"} & set(argv[1:]):
        print(usage.describe(argv))
        sys.exit()
    if not any(argument.startswith("--config") for argument in argv):
        _exit(f"name a job with --config=configs/NAME.py.\n\n{usage.describe(argv)}")
    try:
        return flags.FLAGS(usage.find_configs(argv))
    except FileNotFoundError as error:
        _exit(str(error))
    except (flags.Error, ValueError, TypeError, LookupError, AttributeError) as error:
        problem = usage.explain(error, argv)
        _exit(f"{problem}\n(--help lists jobs; with --config, its keys)")


def run() -> None:
    """Entry point of `python -m gpt1_jax.main` and of the command `gpt1_jax`."""
    atexit.register(_skip_finalization)  # first to be registered, last to be called
    app.run(main, flags_parser=_parse)


if __name__ == "__main__":
    run()
