"""The program: parses the flags, checks them, runs the job, and reports an error.

That is `_parse`, `_check`, `_run` and, for the line of an error, `main`. Testable logic
is in the other modules. Heavy imports wait until the flags are parsed.
"""

import os
import resource
import sys
import traceback
import warnings
from collections.abc import Sequence
from logging import CRITICAL, Formatter, LogRecord, getLogger
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from gpt1_jax import addresses, streams
from gpt1_jax import config as config_lib
from gpt1_jax.config import usage
from gpt1_jax.config.checks import check_encodable, places
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.data import files
from gpt1_jax.data.text import printable
from gpt1_jax.errors import TryAgain, UserError, explain
from gpt1_jax.runs import wall_time


class _TupleParser(flags.ArgumentParser):
    """Lets the last of several values win, as for all keys, instead of joining them."""

    def parse(self, argument: object) -> tuple[object, ...]:
        return tuple_parser.TupleParser().parse(argument)

    def flag_type(self) -> str:
        return "tuple"


config_flags.register_flag_parser_for_type(tuple, _TupleParser())
_CONFIG = config_flags.DEFINE_config_file(
    "config", help_string="The job: a file of configs/, with :preset if it takes one."
)
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "The folder to write to, local or gs://; default runs/JOB/PRESET. Jobs that write "
    "only a file (config.output) take none.",
)
_DISTRIBUTED = flags.DEFINE_enum(
    "distributed",
    "auto",
    ["auto", "on", "off"],
    "Whether to join the processes of a multi-host run; auto: if there are several.",
)

_LOST = (
    "another process of this run has ended; its output says why. Run the same "
    "command again to resume."
)
_QUIT = (
    b"\ngpt1_jax: interrupted without saving. Run the same command again to resume "
    b"from what was saved before.\n"
)
# Errors that the user can fix, or faults of the machine; any other exception is a bug
# and shows its traceback.
_USER_ERRORS = (UserError, OSError, FloatingPointError)

# With less, libraries written in C++ end the program, or wait for ever.
_ADDRESS_SPACE = 5_000_000_000  # bytes
_OPEN_FILES = 64
_ENOUGH_FILES = 1024


def run() -> None:
    """Runs the program."""
    os.environ["MPLBACKEND"] = "agg"  # figures are only written to files
    _let_warnings_be()
    streams.open_streams()
    logging.get_absl_handler().python_handler.setStream(sys.stderr)
    try:
        app.run(main, flags_parser=_parse)
    except SystemExit as end:
        if not isinstance(end.code, int) or end.code == 0:
            raise
        _end(end.code)
    except Exception:
        traceback.print_exc()
        _end(1)


def _end(code: int) -> NoReturn:
    """Ends the program without the finalization of other packages.

    JAX's crashes after an interrupted compile, and threads of orbax wait for minutes
    for a folder that could not be made.
    """
    streams.output_may_fail()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _parse(argv: Sequence[str]) -> list[str]:
    """Parses the flags; a bad one prints one line, not the parser's traceback."""
    try:
        if {"-h", "-help", "--help", "--helpshort", "--helpfull"} & set(argv[1:]):
            print(printable(usage.describe_usage(argv)), flush=True)
            sys.exit()
        if not any(argument.startswith("--config") for argument in argv):
            jobs = usage.describe_usage(argv)
            _refuse(f"name a job with --config=configs/NAME.py.\n\n{jobs}")
        return flags.FLAGS(usage.find_configs(argv))
    except OSError as error:  # no such configuration, or the help cannot be shown
        _refuse(str(error))
    except (flags.Error, ValueError, TypeError, LookupError, AttributeError) as error:
        problem = usage.explain(error, argv)
        _refuse(f"{problem}\n(--help lists jobs; with --config, its keys)")


def main(argv: Sequence[str]) -> None:
    """Runs the job of the configuration; a user error prints one line."""
    if len(argv) > 1:
        _refuse(usage.refuse_words(argv[1:], sys.argv))
    if not flags.FLAGS["verbosity"].present:
        _warn_plainly()
    try:
        _check_limits()
        _run(*_check())
    except KeyboardInterrupt:
        _exit("gpt1_jax: interrupted; no partial files were left behind.")
    except Exception as error:
        problem = explain(error)
        if not (problem or isinstance(error, _USER_ERRORS)):
            raise
        if logging.level_debug():
            print(printable(traceback.format_exc()), file=sys.stderr)
        _refuse(f"{problem or error}\n(--verbosity=1 shows the traceback)")


def _check_limits() -> None:
    """Refuses limits of the shell with which a job would fail without a word.

    Raises:
      UserError: naming the limit.
    """
    unlimited = resource.RLIM_INFINITY
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if unlimited != most < _OPEN_FILES:
        raise UserError(
            f"This process may open {most} files, and a job needs up to "
            f"{_OPEN_FILES}; allow more with ulimit -n {_ENOUGH_FILES}."
        )
    if unlimited != space < _ADDRESS_SPACE:
        raise UserError(
            f"This process may have {space / 1e9:.1f} GB of address space, and JAX "
            f"needs {_ADDRESS_SPACE / 1e9:.0f} GB for the smallest model, most of "
            "which it only reserves; allow more with ulimit -v unlimited."
        )
    if unlimited != files < _ENOUGH_FILES:
        more = _ENOUGH_FILES if most == unlimited else min(_ENOUGH_FILES, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, most))


def _check() -> tuple[JobConfig, str]:
    """The configuration and the folder to write to.

    Raises:
      UserError: if a value is impossible, or the folder cannot be opened.
    """
    config = config_lib.load(_CONFIG.value.to_dict())
    if config.writes_folder or getattr(config, "output", ""):
        streams.output_may_fail()
    workdir = _WORKDIR.value or config.default_workdir
    check_encodable(workdir, "--workdir")
    files.locate(workdir, "--workdir")
    return config, workdir


def _run(config: JobConfig, workdir: str) -> None:
    """Runs the job, together with the other processes if there are any."""
    try:
        from gpt1_jax.parallel import processes
    except ValueError as error:  # JAX cannot read one of its environment variables
        raise UserError(f"JAX does not start: {error}.") from error
    from gpt1_jax.ops.settings import own_settings
    from gpt1_jax.runs import signals

    try:
        # Before signals are caught: an import could swallow their exception.
        job = config_lib.find_job(config.job).import_module()
        _find_trackers(config)
        with signals.catch(_quit_at_once) as signal, own_settings():
            _join(config, workdir)
            with signal.quitting():
                config = addresses.resolve(config)
            for key, path, local in places(config):
                files.locate(path, key, local=local)
            job.run(config, workdir)
    except signals.Stopped as stopped:
        _say(f"gpt1_jax: {stopped} Run the same command again to resume.")
        _say(wall_time.PROGRAM.summary())
        _leave(processes.EXIT_AGAIN)
    except TryAgain as passing:
        _exit(f"gpt1_jax: {passing}", processes.EXIT_AGAIN)
    except Exception as error:
        if processes.is_lost(error):
            line = str(error).partition("\n")[0]
            _exit(f"gpt1_jax: {_LOST}\n({line})", processes.EXIT_AGAIN)
        known = isinstance(error, _USER_ERRORS) or explain(error)
        if processes.is_joined() and not known:
            _exit(traceback.format_exc())
        raise
    _say(wall_time.PROGRAM.summary())


def _find_trackers(config: JobConfig) -> None:
    """Refuses trackers that are not installed, before any long work."""
    if log := getattr(config, "log", None):
        from gpt1_jax.runs.records import find_tracker, trackers_in_use

        for name in trackers_in_use(log):
            find_tracker(name)


def _join(config: JobConfig, workdir: str) -> None:
    """Joins the other processes, if there are any; together they check the run."""
    from gpt1_jax.parallel import devices, join
    from gpt1_jax.runs.agreement import check_processes

    waits = getattr(config, "distributed", None)  # None: a job for one process
    if waits is not None:
        join.initialize_processes(
            _DISTRIBUTED.value,
            join.Waits(
                waits.initialization_seconds,
                waits.heartbeat_seconds,
                waits.shutdown_seconds,
            ),
        )
        devices.check_platform()
        check_processes(config, workdir)
    elif (count := join.count_processes(_DISTRIBUTED.value)) > 1:
        raise UserError(
            f"The job {config.job} runs in one process, but a launcher has started "
            f"{count}; start one, or use --distributed=off."
        )


def _say(text: str) -> None:
    """Prints a line on the main process, unless it is empty."""
    if text:
        from gpt1_jax.runs import console

        console.say(text)


def _quit_at_once() -> None:
    """Ends the program in the middle of a save.

    After an exception, orbax would report the save as failed, with a traceback. With
    several processes it is still raised, so that the main one ends last.
    """
    from gpt1_jax.parallel import processes

    if not processes.is_joined():
        try:
            os.write(2, _QUIT)  # print is not safe in a signal's handler
        finally:
            os._exit(1)


def _let_warnings_be() -> None:
    """Keeps warnings from ending the job, as PYTHONWARNINGS=error would make them.

    Most come from other packages.
    """
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)


def _warn_plainly() -> None:
    """Shows only warnings, as lines that do not break progress bars."""
    from tqdm.contrib import DummyTqdmFile  # --help does not need it

    logging.set_verbosity(logging.WARNING)
    handler = logging.get_absl_handler().python_handler
    handler.setFormatter(_PrintableFormatter("%(levelname)s: %(message)s"))
    handler.setStream(DummyTqdmFile(sys.stderr))
    getLogger("gcsfs").setLevel(CRITICAL)  # it also raises what it logs at length
    handler.addFilter(_is_news)


def _is_news(record: LogRecord) -> bool:
    """Whether a package's log record is useful and reported nowhere else."""
    # Orbax also raises what its threads log with a traceback, as on a full disk.
    raised = record.exc_info and "orbax/checkpoint" in record.pathname
    # With an old JAX, Grain warns about worker processes; ours are threads.
    return not raised and "Grain multiprocess" not in record.getMessage()


class _PrintableFormatter(Formatter):
    def format(self, record: LogRecord) -> str:
        return printable(super().format(record))


def _refuse(problem: str) -> NoReturn:
    _exit(f"gpt1_jax: error: {problem}")


def _exit(message: str, code: int = 1) -> NoReturn:
    """Ends the program with a line."""
    print(printable(message), file=sys.stderr, flush=True)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Ends the program; with several processes, without waiting for the others."""
    if join := sys.modules.get("gpt1_jax.parallel.join"):
        # The import may have been interrupted.
        getattr(join, "leave", lambda code: None)(code)
    sys.exit(code)
