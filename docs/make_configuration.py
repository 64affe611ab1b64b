"""Makes the page of keys: python docs/make_configuration.py > docs/configuration.md"""

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from gpt1_jax.config import JOBS, usage
from gpt1_jax.config.checks import CONTENT, FREE, MACHINE
from gpt1_jax.config.flat import flatten
from gpt1_jax.config.keys import Description, describe_keys

_HEAD = """\
# Configuration keys

All keys of all jobs: the value that a key has unless a preset or you set another, the
values that it takes, and its meaning. `--config=configs/NAME.py:PRESET --help` prints
the keys of a job with the values of a preset. This page is made from the fields in
`gpt1_jax/config/` and `gpt1_jax/studies/*/config.py`, by `docs/make_configuration.py`.

A run resumes only with the values that it began with. Some keys are exceptions: those
that *may change*; those that may name *the same content* by another path; and those *of
the machine*, which are never read from a run folder.
"""
_ON_RESUME = {
    FREE: "may change",
    CONTENT: "the same content",
    MACHINE: "of the machine",
}


def make_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for job, each in JOBS.items():
        values = flatten(usage.defaults(job, ""))
        keys = describe_keys(each.config_class())
        lines = [_line(key, values) for key in keys if key.key.name in values]
        parts.append("\n".join([f"## {job}\n", *lines, ""]))
    return "\n".join(parts).rstrip() + "\n"


def _line(described: Description, values: Mapping[str, Any]) -> str:
    key, comment = described.key, described.comment
    resumed = [text for mark, text in _ON_RESUME.items() if mark in key.marks]
    if re.match(r"[a-z]+\b", comment):
        comment = comment[0].upper() + comment[1:]
    taken = "; ".join([described.values, *(f"*{each}*" for each in resumed)])
    sentences = [comment, taken[0].upper() + taken[1:]]
    text = " ".join(f"{each.removesuffix('.')}." for each in sentences if each)
    return "\n".join(
        textwrap.wrap(
            f"- `{key.name}={values[key.name]!r}`: {text}",
            99,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


if __name__ == "__main__":
    print(make_page(), end="")
