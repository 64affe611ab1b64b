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

The keys of all jobs: the value that each has unless a preset or you set another, its
meaning, and limits that are not obvious. Keys that an earlier job explains stand at the
end of a job, with the values that differ there. The flag `--config.KEY` sets a key;
`--config=configs/NAME.py:PRESET --help` prints all of a job and preset.

A run resumes only with the values that it began with. Exceptions are keys that *may
change*, keys that may name *the same content* by another path, and keys *of the
machine*, which are never read from a run folder.

(Made by `docs/make_configuration.py` from the fields in `gpt1_jax/config/` and
`gpt1_jax/studies/*/config.py`.)
"""
_ON_RESUME = {
    FREE: "may change",
    CONTENT: "the same content",
    MACHINE: "of the machine",
}
_OBVIOUS = (
    r"positive|not be negative|at most [12],\d{3},\d{3}|the lowest and"
    r"|different names|all, none or|in \[0, 0\.99999"
)


def make_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    explained: dict[str, _Explained] = {}  # the text of a key -> where it stands
    for job, each in JOBS.items():
        values = flatten(usage.defaults(job, ""))
        lines, elsewhere = [], defaultdict(list)
        for described in describe_keys(each.config_class()):
            name = described.key.name
            skipped = name == "job" or (name == "preset" and explained)
            if skipped or name not in values:
                continue
            here = _Explained(job, name, values[name])
            place = explained.setdefault(f"{name}: {_text(described)}", here)
            if place is here:
                lines.append(_wrapped(f"- {here.default}: {_text(described)}"))
            else:
                elsewhere[place.job].append((place, here))
        for first, pairs in elsewhere.items():
            known = [each for each in explained.values() if each.job == first]
            lines.append(_wrapped(f"- {_shared(first, known, pairs)}"))
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
    first: str, known: list[_Explained], pairs: list[tuple[_Explained, _Explained]]
) -> str:
    """The keys that an earlier job explains: whole sections by name, other values."""
    count = Counter(place.section for place, _ in pairs)
    whole = Counter(each.section for each in known)
    names = [
        f"`{here.section}.*`"
        if here.section and 1 < count[here.section] == whole[here.section]
        else f"`{here.name}`"
        for _, here in pairs
    ]
    text = f"As under [{first}](#{first}): {', '.join(dict.fromkeys(names))}."
    others = [here.default for place, here in pairs if place.value != here.value]
    return f"{text} Other values: {', '.join(others)}." if others else text


def _text(described: Description) -> str:
    """What a key means, its limits, and what resuming allows."""
    key, comment = described.key, described.comment
    if re.match(r"[a-z]+\b", comment):
        comment = comment[0].upper() + comment[1:]
    resumed = [f"*{text}*" for mark, text in _ON_RESUME.items() if mark in key.marks]
    taken = "; ".join([*_limits(described), *resumed])
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
