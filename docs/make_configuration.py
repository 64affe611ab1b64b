"""Makes the page of keys: python docs/make_configuration.py > docs/configuration.md"""

import re
import textwrap
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from gpt1_jax.config import JOBS, usage
from gpt1_jax.config.checks import CONTENT, FREE, MACHINE
from gpt1_jax.config.flat import flatten
from gpt1_jax.config.keys import Description, describe_keys

_HEAD = """\
# Configuration keys

The keys of all jobs with their defaults. The flag `--config.KEY` sets one;
`--config=configs/NAME.py:PRESET --help` prints those of a job and preset. Keys that an
earlier job explains stand at the end of a job; `SECTION.*` are all that both have.

A run resumes only with the values that it began with. Exceptions are keys that *may
change*, keys that may name *the same content* by another path, and keys *of the
machine*, which are never read from a run folder.

(Made by `docs/make_configuration.py` from the comments at the fields.)
"""
_ON_RESUME = {
    FREE: "may change",
    CONTENT: "the same content",
    MACHINE: "of the machine",
}
_OBVIOUS = (
    r"positive|not be negative|at most [12],\d{3},\d{3}|the lowest and|all, none or"
    r"|different n|no layer twice|one or more|a whole number in|0$"
    r"|in \[0, (0\.99999|1[)\]])|codes of|the Hub's|the number of a"
)


def make_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    explained: dict[str, _Explained] = {}  # the text of a key -> where it stands
    for job, each in JOBS.items():
        values = flatten(usage.defaults(job, ""))
        lines, elsewhere = [], defaultdict(list)
        sections: Counter[str] = Counter()  # how many keys each has
        for described in describe_keys(each.config_class()):
            name = described.key.name
            skipped = name == "job" or (name == "preset" and explained)
            if skipped or name not in values:
                continue
            here = _Explained(job, name, values[name])
            sections[here.section] += 1
            text = _text(described, here.value)
            place = explained.setdefault(f"{name}: {text}", here)
            if place is here:
                lines.append(_wrapped(f"- {here.default}: {text}"))
            else:
                elsewhere[place.job].append((place, here))
        shared = []
        for first, pairs in elsewhere.items():
            there = Counter(
                each.section for each in explained.values() if each.job == first
            )
            shared.append(_shared(first, pairs, (there, sections)))
        if shared:
            lines.append(_wrapped(f"- As under {'; '.join(shared)}."))
        parts.append("\n".join([f"## {job}\n", *lines, ""]))
    return "\n".join(parts).rstrip() + "\n"


class _Explained(NamedTuple):
    """A key of a job, with its default there."""

    job: str
    name: str
    value: Any

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def default(self) -> str:
        value = repr(self.value)
        return f"`{self.name}={value if len(value) < 99 else value[:50] + '..'}`"


def _shared(
    first: str,
    pairs: list[tuple[_Explained, _Explained]],
    sizes: tuple[Counter[str], Counter[str]],
) -> str:
    """The keys of a job that an earlier one explains: whole sections by name."""
    count = Counter(here.section for _, here in pairs)
    names = []
    for place, here in pairs:
        found = count[section := here.section]
        whole = section and 1 < found in [each[section] for each in sizes]
        if whole:
            names.append(f"`{section}.*`")
        if place.value != here.value:
            names.append(here.default)
        elif not whole:
            names.append(f"`{here.name}`")
    return f"[{first}](#{first}): {', '.join(dict.fromkeys(names))}"


def _text(described: Description, value: Any) -> str:
    """What a key means, its limits, and what resuming allows."""
    key, comment = described.key, described.comment
    if re.match(r"[a-z]+\b", comment):
        comment = comment[0].upper() + comment[1:]
    resumed = [f"*{text}*" for mark, text in _ON_RESUME.items() if mark in key.marks]
    limits = [each for each in _limits(described) if each != "required" or not value]
    taken = "; ".join([*limits, *resumed])
    sentences = [comment, taken[:1].upper() + taken[1:]]
    return " ".join(f"{each.removesuffix('.')}." for each in sentences if each)


def _limits(described: Description) -> list[str]:
    """What neither the default, the comment nor common sense says of the values."""
    words = [each for each in re.findall(r'"([^"]*)"', described.values) if each]
    if words:
        said = all(f'"{each}"' in described.comment for each in words)
        return [] if said else [" or ".join(f'"{each}"' for each in words)]
    limits = []
    for must in described.values.split(", must ")[1:]:
        short = re.split(r"[:;] |,? (?:as|which|such as) |, or ", must)[0]
        short = re.sub(r"^(be|lie|name) ", "", short).replace("given", "required")
        endings = re.findall(r"\.\w+", short) if short.startswith("end in") else []
        shown = [each for each in endings if each in described.comment]
        if not ((shown and shown == endings) or re.match(_OBVIOUS, short)):
            limits.append(short.replace("end in", "ends in"))
    return limits


def _wrapped(text: str) -> str:
    return "\n".join(
        textwrap.wrap(
            text,
            99,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


if __name__ == "__main__":
    print(make_page(), end="")
