"""Makes the page of keys: python docs/make_configuration.py > docs/configuration.md"""

import re
import textwrap
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from gpt1_jax.config import JOBS, STUDIES, usage
from gpt1_jax.config.checks import CONTENT, FREE, MACHINE
from gpt1_jax.config.flat import flatten
from gpt1_jax.config.keys import Description, describe_keys

_HEAD = """\
# Configuration keys

The flag `--config.KEY` sets a key. These are the defaults;
`--config=configs/NAME.py:PRESET --help` prints the values of a job's preset, too.

## On resume

A run resumes only with the values that it began with, except for these keys:
"""
_STUDIES = """\
Their pages name their keys, and `--config=configs/NAME.py --help` explains them: {}."""
_PAGES = {"batches": "pretraining.md#what-an-update-has-read", "verify": "suite.md"}
_FOOT = "(Made by `docs/make_configuration.py` from the comments at the fields.)"
_ON_RESUME = {
    FREE: "They may change",
    CONTENT: "They may name the same content by another path",
    MACHINE: "They are of the machine, and never read from a run folder",
}
_OBVIOUS = (
    r"positive|not be negative|at most [12],\d{3},\d{3}|the lowest and|all, none or"
    r"|different n|no layer twice|one or more|a whole number in|0$"
    r"|in \[0, (0\.99999|1[)\]])|codes of|the Hub's|the number of a"
)


def make_page() -> str:
    """The page as Markdown."""
    described = {job: _keys(job) for job in JOBS}
    explained: dict[str, _Explained] = {}  # the text of a key -> where it stands
    parts = [_HEAD, _rules(described), ""]
    for job in [each for each in JOBS if each not in STUDIES]:
        lines, elsewhere = [], defaultdict(list)
        sections: Counter[str] = Counter()  # how many keys each has
        for key, here in described[job]:
            if here.name == "preset" and explained:
                continue
            sections[here.section] += 1
            text = _text(key, here.value)
            place = explained.setdefault(f"{here.name}: {text}", here)
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
    pages = {job: _PAGES.get(job, f"{job.replace('_', '-')}.md") for job in STUDIES}
    links = [f"[{job}]({page})" for job, page in pages.items()]
    parts += ["## Studies\n", _wrapped(_STUDIES.format(", ".join(links)), ""), ""]
    return "\n".join([*parts, _FOOT]) + "\n"


def _keys(job: str) -> list[tuple[Description, "_Explained"]]:
    """The keys of a job that its defaults have."""
    values = flatten(usage.defaults(job, ""))
    keys = [(each, each.key.name) for each in describe_keys(JOBS[job].config_class())]
    return [
        (each, _Explained(job, name, values[name]))
        for each, name in keys
        if name != "job" and name in values
    ]


def _rules(described: dict[str, list[tuple[Description, "_Explained"]]]) -> str:
    """Which keys may differ when a run resumes; a section by its name if all may."""
    marks: dict[str, set[str]] = {}  # of a key, in any job
    for pairs in described.values():
        for each, here in pairs:
            marks.setdefault(here.name, set()).update(each.key.marks)
    lines = []
    for mark, rule in _ON_RESUME.items():
        names: dict[str, None] = {}
        for name in [each for each in marks if mark in marks[each]]:
            section = name.rpartition(".")[0]
            others = [each for each in marks if each.startswith(f"{section}.")]
            whole = section and all(mark in marks[each] for each in others)
            names[f"`{section}.*`" if whole else f"`{name}`"] = None
        lines.append(_wrapped(f"- {rule}: {', '.join(names)}."))
    return "\n".join(lines)


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
        return f"`{self.name}={self.value!r}`"


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
    """What a key means, and its limits."""
    comment = described.comment
    if re.match(r"[a-z]+\b", comment):
        comment = comment[0].upper() + comment[1:]
    limits = [each for each in _limits(described) if each != "required" or not value]
    taken = "; ".join(limits)
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


def _wrapped(text: str, indent: str = "  ") -> str:
    return "\n".join(
        textwrap.wrap(
            text,
            99,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


if __name__ == "__main__":
    print(make_page(), end="")
