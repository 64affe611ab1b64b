"""Help: the jobs, presets and keys of `configs/`, and wrong flags explained."""

import difflib
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags

from gpt1_jax.config.saved import RENAMED, flatten
from gpt1_jax.errors import UserError

CONFIGS = Path(__file__).parents[1] / "configs"  # in a checkout, a link to configs/
_FLAG = "--config="


def find_configs(argv: Sequence[str]) -> list[str]:
    """The arguments, with `--config=configs/NAME.py` working outside a checkout too.

    `--config configs/NAME.py` becomes one argument.

    Raises:
      FileNotFoundError: if the file is neither there nor one of the program's own.
    """
    found = _joined(argv)
    for index, argument in enumerate(found):
        if not argument.startswith(_FLAG):
            continue
        path, colon, preset = argument.removeprefix(_FLAG).partition(":")
        own = CONFIGS / Path(path).name
        if Path(path).exists():
            continue
        if path != f"configs/{own.name}" or not own.exists():
            names = ", ".join(f"configs/{each.name}" for each in own_files())
            near = difflib.get_close_matches(own.stem, [e.stem for e in own_files()], 1)
            meant = f" Did you mean configs/{near[0]}.py?" if near else ""
            raise FileNotFoundError(
                f"--config={path}: there is no such file.{meant} The program has "
                f"{names}."
            )
        found[index] = f"{_FLAG}{own}{colon}{preset}"
    return found


def _joined(argv: Sequence[str]) -> list[str]:
    """The arguments, with `--config FILE` as one."""
    found = list(argv)
    for index in reversed(range(len(found) - 1)):
        if found[index] == _FLAG[:-1]:
            found[index : index + 2] = [_FLAG + found[index + 1]]
    return found


def _named(argv: Sequence[str]) -> str:
    """The value of `--config`; "" if there is none."""
    values = (x.removeprefix(_FLAG) for x in _joined(argv) if x.startswith(_FLAG))
    return next(values, "")


def own_files() -> list[Path]:
    """The files of `configs/`."""
    return sorted(path for path in CONFIGS.iterdir() if path.suffix == ".py")


def defaults(job: str, preset: str) -> dict[str, Any]:
    """The values of a job's file in `configs/`, before any is overridden.

    Args:
      job: the name of the file.
      preset: one of the file's; "" or an unknown one stands for its default.
    """
    return _values(CONFIGS / f"{job}.py", preset)


def _values(path: Path, preset: str) -> dict[str, Any]:
    try:
        return get_config(path, preset).to_dict()
    except (TypeError, ValueError):  # the file takes no preset, or not this one
        return get_config(path, "").to_dict()


def get_config(path: Path, preset: str) -> Any:
    """The ConfigDict that a file makes; `preset` may be empty.

    Raises:
      TypeError, ValueError: if the file takes no preset, or not this one.
    """
    return _load(path).get_config(*([preset] if preset else []))


def describe_usage(argv: Sequence[str]) -> str:
    """Help on the program, or on the job that the arguments name."""
    for argument in find_configs(argv):
        if argument.startswith(_FLAG):
            path, _, preset = argument.removeprefix(_FLAG).partition(":")
            if Path(path).is_file():
                return _describe_job(Path(path), preset)
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
    module = _load(path)
    config = get_config(path, preset)
    keys = "\n".join(
        f"  --config.{key}={value!r}"
        for key, value in flatten(config.to_dict()).items()
    )
    return (
        f"{(module.__doc__ or '').strip()}\n\nKeys and their values; {path} says what "
        f"each is:\n\n{keys}"
    )


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
    """Explains in one line why arguments that are no flags are refused.

    Args:
      words: these arguments.
      argv: all of them.
    """
    config = _named(argv)
    if config and ":" not in config and words[0].isidentifier():
        meant = f"{_FLAG}{config}:{words[0]}"
        return f"unexpected {words[0]!r}; a preset follows a colon: {meant}"
    return (
        f"unexpected arguments {list(words)}; set values with "
        "--config.section.key=value."
    )


def explain(error: Exception, argv: Sequence[str]) -> str:
    """Explains in one line what is wrong with the arguments.

    Args:
      error: the flag parser's error.
      argv: the arguments.
    """
    if isinstance(error, flags.UnrecognizedFlagError):
        return _explain_unknown_flag(error.flagname, argv)
    text = str(error.args[0] if error.args else error)
    text = " ".join(text.replace("\\n", " ").replace("\\", "").split())
    if unknown := re.match(r"[\"']+(\w+)'(?: Did you mean \"(\w+)\")?", text):
        key, meant = unknown.groups()
        named = re.compile(rf"\.{key}[.=]")
        flag = next(filter(named.search, argv), f"--config..{key}")
        hint = f"; did you mean {meant}?" if meant else _with_section(key, argv)
        return f"{flag}: there is no key {key!r}{hint}"
    if "Traceback" in text:  # in a configuration file; its last line says enough
        text = re.split(r"(?<![A-Za-z.])[A-Za-z.]+(?:Error|Exception): ", text)[-1]
    else:
        for key in _keys(argv):
            if flag := next((arg for arg in argv if f"--config.{key}." in arg), ""):
                return f"{flag}: config.{key} is a value, without keys of its own."
    if unknown := re.search(r"has no preset '(.*)'; choose one of (.*)\.", text):
        near = difflib.get_close_matches(unknown[1], unknown[2].split(", "), 1)
        text += f" Did you mean {near[0]}?" if near else ""
    if text.startswith("get_config() takes 0 positional arguments"):
        return "this job has no presets; leave out the colon and what follows it."
    return text or type(error).__name__


def _with_section(key: str, argv: Sequence[str]) -> str:
    """A hint to keys of this name, now or earlier; a full stop if there are none."""
    keys = {**{each: each for each in _keys(argv)}, **RENAMED}
    meant = [f"--config.{keys[each]}" for each in keys if each.endswith(f".{key}")]
    return f"; did you mean {' or '.join(meant)}?" if meant else "."


def _keys(argv: Sequence[str]) -> list[str]:
    """The keys of the configuration that is named; none if it cannot be read."""
    path, _, preset = _named(argv).partition(":")
    files = [each for each in (Path(path), CONFIGS / Path(path).name) if each.is_file()]
    return list(flatten(_values(files[0], preset))) if files else []


def _explain_unknown_flag(name: str, argv: Sequence[str]) -> str:
    """A key without `config.` or its section, or a slip of the pen."""
    keys = _keys(argv)
    own = ["config", "workdir", "distributed", "verbosity", "help"]
    meant = [key for key in keys if key == name or key.endswith(f".{name}")]
    near = difflib.get_close_matches(name, [*own, *keys], 1)
    known = [f"config.{each}" if each in keys else each for each in meant or near]
    hint = f"; did you mean {' or '.join(f'--{each}' for each in known)}?"
    return f"--{name}: there is no such flag{hint if known else '.'}"
