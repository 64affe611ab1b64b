"""Starts a program of Python where its packages are imported already.

To import them takes seconds. A server process has imported them, and nothing of this
package; each program is a fork of it.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

_SERVERS = multiprocessing.get_context("forkserver")
_SERVERS.set_forkserver_preload(
    [
        *("absl.app", "flax.linen", "grain", "jax", "matplotlib.figure"),
        *("ml_collections", "optax", "orbax.checkpoint", "tqdm.contrib"),
    ]
)
# Variables that are read as the interpreter starts or packages are imported.
_EARLY = ("JAX_", "LANG", "LC_", "LD_", "MPL", "OMP_", "PYTHON", "TF_")
# But these only once a program has begun.
_LATE = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "PYTHONPATH")


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    names = (name for name in environment if name.startswith(_EARLY))
    return {name: environment[name] for name in names if name not in _LATE}


_ENVIRONMENT = _read_early(os.environ)  # of the server


def start(
    command: Sequence[str | os.PathLike],
    cwd: os.PathLike,
    environment: Mapping[str, str],
) -> "Program | subprocess.Popen":
    """Starts `python COMMAND`, as a fork of the server where it can be one.

    Args:
      command: such as `-m MODULE` or `-c CODE`, and its arguments.
      cwd: the working directory.
      environment: all environment variables.
    """
    command = [os.fspath(each) for each in command]
    if command[0] in ("-m", "-c") and _read_early(environment) == _ENVIRONMENT:
        return Program(command, os.fspath(cwd), dict(environment))
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Program:
    """A program that runs, as `subprocess.Popen` has it.

    Attributes:
      pid: the number of its process.
      stdout: its standard output and error together.
      returncode: the exit status once it has ended.
    """

    def __init__(self, *arguments):
        output, theirs = _SERVERS.Pipe(duplex=False)
        self._process = _SERVERS.Process(target=_run, args=(*arguments, theirs))
        self._process.start()
        theirs.close()
        self.pid = self._process.pid
        self.stdout = open(os.dup(output.fileno()))
        output.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float) -> tuple[str, None]:
        """What it prints to its end; it is killed after `timeout` seconds."""
        late = threading.Timer(timeout, self.send_signal, [signal.SIGKILL])
        late.start()
        with self:
            text = self.stdout.read()
        late.cancel()
        return text, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stdout.close()
        self._process.join()


def _run(command, cwd, environment, output):
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    installed = (sys.prefix, sys.base_prefix)
    sys.path[:] = [
        *(os.getcwd(), environment["PYTHONPATH"]),
        *(path for path in sys.path if path.startswith(installed)),
    ]
    how, what, *arguments = command
    sys.argv = [what if how == "-m" else how, *arguments]
    try:
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()
