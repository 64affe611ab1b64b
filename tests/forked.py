"""Starts a module as a program where its packages are imported already.

To import them takes seconds. A server process has imported them, and nothing of this
package; each program is a fork of it.
"""

import atexit
import multiprocessing
import os
import runpy
import sys

_SERVERS = multiprocessing.get_context("forkserver")
_SERVERS.set_forkserver_preload(
    [
        *("absl.app", "flax.linen", "grain", "jax", "matplotlib.figure"),
        *("ml_collections", "optax", "orbax.checkpoint", "tqdm.contrib"),
    ]
)
_OWN = {"PYTEST_CURRENT_TEST": ""}  # differs in each test
_ENVIRONMENT = {**os.environ, **_OWN}  # of the server


def fits(environment):
    """Whether a program in this environment can be a fork of the server."""
    return {**environment, **_OWN} == _ENVIRONMENT


def run_module(module, flags, cwd, root):
    """Does what `python -m module` does.

    Args:
      module: its name.
      flags: of the command line.
      cwd: the working directory.
      root: the folder of the package, as in PYTHONPATH.

    Returns:
      The exit status, and standard output and error together.
    """
    output, theirs = _SERVERS.Pipe(duplex=False)
    arguments = (module, [os.fspath(each) for each in flags], cwd, root, theirs)
    process = _SERVERS.Process(target=_main, args=arguments)
    process.start()
    theirs.close()
    with open(output.fileno(), closefd=False) as file:
        text = file.read()
    process.join()
    return process.exitcode, text


def _main(module, flags, cwd, root, output):
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    os.chdir(cwd)
    os.environ["PYTHONPATH"] = str(root)
    installed = (sys.prefix, sys.base_prefix)
    sys.path[:] = [
        *(os.getcwd(), str(root)),
        *(path for path in sys.path if path.startswith(installed)),
    ]
    sys.argv = [module, *flags]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
