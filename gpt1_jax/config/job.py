"""What every job's configuration has, and how it is made from plain values."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, get_args, get_origin

from gpt1_jax.config.model_section import ModelConfig
from gpt1_jax.config.sections import require
from gpt1_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class JobConfig:
    """What every job's configuration has."""

    writes_folder: ClassVar[bool] = True  # or only a file, `output`

    job: str
    preset: str

    @property
    def default_workdir(self) -> str:
        """The folder to write to unless another is named; "" if the job writes none."""
        if not self.writes_folder:
            return ""
        return os.path.join("runs", self.job, self.preset)

    def check_workdir(self, workdir: str) -> None:
        """Refuses a folder that is named for a job that writes none."""
        require(
            self.writes_folder or not workdir,
            f"--workdir={workdir!r}, but the job {self.job} writes no folder; leave it "
            "out, and name the file to write with --config.output=FILE.",
        )

    def to_dict(self) -> dict[str, Any]:
        """The resolved configuration as plain JSON values."""
        return dataclasses.asdict(self)


def places(section: Any, key: str = "config") -> Iterator[tuple[str, str, bool]]:
    """The files and folders that a configuration names.

    Args:
      section: the configuration, or a section of it.
      key: its key.

    Yields:
      The key of each, its path, and whether it must be local.
    """
    for field in dataclasses.fields(section):
        value, name = getattr(section, field.name), f"{key}.{field.name}"
        if dataclasses.is_dataclass(value):
            yield from places(value, name)
        elif kind := field.metadata.get("place"):
            for path in value.split(",") if kind["several"] else (value,):
                yield name, path.strip(), kind["local"]


def make_model_config(values: Mapping[str, Any]) -> ModelConfig:
    """The model's section and the vocabulary size as one typed view."""
    return make_section("model", ModelConfig, values)


def check_seed(key: str, seed: int) -> None:
    """Refuses a seed that JAX and NumPy do not take."""
    require(
        0 <= seed < 2**32,
        f"config.{key}={seed} must be a whole number in [0, 2**32).",
    )


def check_encodable(text: str, where: str) -> None:
    """Refuses text that UTF-8 cannot encode, which no tokenizer and no file takes.

    On the command line, bytes of another encoding become such text; in JSON, half of a
    surrogate pair does.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: {text[error.start]!a} in {text!a:.60} is half of a character "
            "(a lone surrogate) or a byte that is not UTF-8; write the whole character "
            "or remove it."
        ) from error


def make_section(name: str, cls: Any, values: Mapping[str, Any]) -> Any:
    """Builds one section; a wrong set of keys or a wrong type is a ValueError."""
    key = f"config.{name}" if name else "config"
    _require_section(key, values)
    fields: dict[str, Any] = {
        field.name: field.type for field in dataclasses.fields(cls)
    }
    unknown = sorted(set(values) - set(fields))
    missing = sorted(set(fields) - set(values))
    require(
        not unknown, f"{key} has unknown keys {unknown}; it takes {sorted(fields)}."
    )
    require(not missing, f"{key} lacks the keys {missing}.")
    return cls(
        **{
            field: make_section(field, kind, values[field])
            if dataclasses.is_dataclass(kind)
            else _typed(f"{key}.{field}", kind, values[field])
            for field, kind in fields.items()
        }
    )


def _require_section(key: str, values: Any) -> None:
    require(
        isinstance(values, Mapping), f"{key}={values!r:.40} must be a section of keys."
    )


_KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def _typed(key: str, kind: Any, value: Any) -> Any:
    """The value if it has its field's type; otherwise a ValueError."""
    if get_origin(kind) is tuple:
        parts, listed = get_args(kind), isinstance(value, list | tuple)
        if parts[-1] is Ellipsis:
            parts = parts[:1] * (len(value) if listed else 1)
        require(
            listed and len(value) == len(parts),
            f"{key}={value!r:.80} must be a tuple of {len(parts)}.",
        )
        pairs = enumerate(zip(parts, value, strict=True))
        return tuple(_typed(f"{key}[{i}]", *pair) for i, pair in pairs)
    if get_origin(kind) is Mapping:
        _require_section(key, value)
    if kind is str and key.endswith("]") and type(value) in (int, float):
        return str(value)  # a name that looks like a number
    if kind in _KINDS:
        accepted: Any = int | float if kind is float else kind
        fits = isinstance(value, accepted) and (kind is bool) == isinstance(value, bool)
        require(fits, f"{key}={value!r:.80} must be {_KINDS[kind]}.")
    if isinstance(value, str):
        check_encodable(value, key)
    return value
