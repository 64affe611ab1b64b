"""Help: the jobs, presets and keys of `configs/`, and wrong flags explained."""

import difflib
import importlib.util
import inspect
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_collections
from absl import flags

from gpt1_jax.config import find_job
from gpt1_jax.config.checks import KINDS, require
from gpt1_jax.config.flat import RENAMED, flatten
from gpt1_jax.config.keys import describe_values
from gpt1_jax.errors import UserError

CONFIGS = Path(__file__).parents[1] / "configs"  # in a checkout, a link to configs/
_FLAG = "--config="
_FLAGS = ("config", "workdir", "distributed", "verbosity", "help")


def find_configs(argv: Sequence[str]) -> list[str]:
    """The arguments, with `--config=configs/NAME.py` working outside a checkout too.

    `--config configs/NAME.py` becomes one argument. The keys that are set are looked
    for in what the file makes.

    Raises:
      FileNotFoundError: if the file is neither there nor one of the program's own.
      UserError: if it has an error, or lacks the preset or a key that is set.
    """
    found = _joined(argv)
    path, preset = _named(found)
    if not path:
        return found
    file, given = _find_file(path), f"{_FLAG}{path}"
    known = list(flatten(get_config(file, preset).to_dict()))
    for flag in found:
        _check_key(flag, known)
    return [
        f"{_FLAG}{file}{each.removeprefix(given)}" if each.startswith(given) else each
        for each in found
    ]


def _joined(argv: Sequence[str]) -> list[str]:
    """The arguments, with `--config FILE` as one."""
    found = list(argv)
    for index in reversed(range(len(found) - 1)):
        if found[index] == _FLAG[:-1]:
            found[index : index + 2] = [_FLAG + found[index + 1]]
    return found


def _named(argv: Sequence[str]) -> tuple[str, str]:
    """The file and the preset that `--config` names; ("", "") without it."""
    for argument in _joined(argv):
        if argument.startswith(_FLAG):
            path, _, preset = argument.removeprefix(_FLAG).partition(":")
            return path, preset
    return "", ""


def _find_file(path: str) -> Path:
    """A configuration file, or the program's own of this name."""
    own = CONFIGS / Path(path).name
    if Path(path).exists():
        return Path(path)
    if path == f"configs/{own.name}" and own.exists():
        return own
    names = {each.stem: f"configs/{each.name}" for each in own_files()}
    near = difflib.get_close_matches(own.stem, names, 1)
    meant = f" Did you mean {names[near[0]]}?" if near else ""
    raise FileNotFoundError(
        f"--config={path}: there is no such file.{meant} The program has "
        f"{', '.join(names.values())}."
    )


def _did_you_mean(names: Sequence[str]) -> str:
    """The end of a sentence on an unknown name, with those that may be meant."""
    return f"; did you mean {' or '.join(names)}?" if names else "."


def _near_keys(key: str, known: Iterable[str]) -> list[str]:
    """The flags of keys that may be meant: in another section, or nearly so called."""
    if key in RENAMED:
        return [f"--config.{RENAMED[key]}"]
    names = list(known)
    last = key.rpartition(".")[2]
    same = [each for each in names if each.rpartition(".")[2] == last]
    near = same or difflib.get_close_matches(key, names, 1)
    return [f"--config.{each}" for each in near]


def _check_key(flag: str, known: Sequence[str]) -> None:
    """Refuses a flag that sets a key which the configuration does not have."""
    name = flag.partition("=")[0].lstrip("-")
    if not (flag.startswith("-") and name.startswith(("config.", "noconfig."))):
        return
    key = name.partition("config.")[2].partition("[")[0]
    sections = {each.rpartition(".")[0] for each in known}
    around = [each for each in known if key.startswith(f"{each}.")]
    if key in sections:
        problem = f"config.{key} is a section; set one of its keys."
    elif around:
        problem = f"config.{around[0]} is a value, without keys inside it."
    else:
        problem = f"there is no such key{_did_you_mean(_near_keys(key, known))}"
    require(key in known, f"{flag}: {problem}")


def own_files() -> list[Path]:
    """The files of `configs/`."""
    return sorted(path for path in CONFIGS.iterdir() if path.suffix == ".py")


def defaults(job: str, preset: str) -> dict[str, Any]:
    """The values of a job's file in `configs/`, before any is overridden.

    Args:
      job: the name of the file.
      preset: one of the file's; "" or an unknown one stands for its default.
    """
    path = CONFIGS / f"{job}.py"
    try:
        return get_config(path, preset).to_dict()
    except UserError:  # the file takes no preset, or not this one
        return get_config(path, "").to_dict()


def get_config(path: Path, preset: str) -> ml_collections.ConfigDict:
    """The ConfigDict that a file makes; `preset` may be empty.

    Raises:
      UserError: if the file takes no preset, or not this one, or has an error.
    """
    try:
        make = _load(path).get_config
        require(
            not preset or bool(inspect.signature(make).parameters),
            "this job has no presets; leave out the colon and what follows it.",
        )
        config = make(*([preset] if preset else []))
        require(
            isinstance(config, ml_collections.ConfigDict),
            f"{path}: get_config() gives {config!r:.40}, not a ConfigDict.",
        )
        return config
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [each.lineno for each in frames if each.filename == str(path)]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise UserError(f"{where}: {type(error).__name__}: {error}") from error


def describe_usage(argv: Sequence[str]) -> str:
    """Help on the program, or on the job that the arguments name."""
    path, preset = _named(argv)
    if path:
        return _describe_job(_find_file(path), preset)
    jobs = "\n".join(
        f"  configs/{path.name:<18}{_first_line(_load(path))}" for path in own_files()
    )
    return (
        "Usage: python -m gpt1_jax.main --config=configs/NAME.py[:PRESET] "
        "[--workdir=DIR]\n"
        "           [--config.SECTION.KEY=VALUE ...]\n\n"
        f"Jobs:\n{jobs}\n\n"
        "Flags:\n"
        "  --workdir=DIR             the folder to write to, local or gs://; default "
        "runs/JOB/PRESET;\n"
        "                            not of a job that writes only config.output\n"
        "  --distributed=auto        or on, off: whether to join other processes\n"
        "  --verbosity=1             show where an error arose\n\n"
        "Presets and keys of a job: --config=configs/NAME.py --help"
    )


def _describe_job(path: Path, preset: str) -> str:
    config = get_config(path, preset)
    job = find_job(config.get("job"), may_import=True)
    keys = describe_values(job.config_class(), config.to_dict())
    return f"{(_load(path).__doc__ or '').strip()}\n\nKeys and their values:\n\n{keys}"


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]


def refuse_words(words: Sequence[str], argv: Sequence[str]) -> str:
    """Explains in one line why these words, of all arguments, are no flags."""
    path, preset = _named(argv)
    if path and not preset and words[0].isidentifier():
        meant = f"{_FLAG}{path}:{words[0]}"
        return f"unexpected {words[0]!r}; a preset follows a colon: {meant}"
    given = list(words)
    return f"unexpected arguments {given}; set values with --config.section.key=value."


def explain(error: Exception, argv: Sequence[str]) -> str:
    """Explains in one line an error of `find_configs` or of the flag parser."""
    line = " ".join(str(error).split()) or type(error).__name__
    path, preset = _named(argv)
    if not (path and isinstance(error, flags.Error)):
        return line
    values = flatten(get_config(_find_file(path), preset).to_dict())
    if isinstance(error, flags.UnrecognizedFlagError):
        own = difflib.get_close_matches(error.flagname, _FLAGS, 1)
        meant = [f"--{each}" for each in own] or _near_keys(error.flagname, values)
        return f"--{error.flagname}: there is no such flag{_did_you_mean(meant)}"
    if isinstance(error, flags.IllegalFlagValueError):
        flag = line.removeprefix("flag ").partition(": ")[0]
        key = flag.removeprefix("--config.").partition("=")[0]
        kind = KINDS.get(type(values.get(key)))
        return f"{flag} must be {kind}." if kind else line
    return line
