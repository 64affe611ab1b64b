"""What is done to any text before it is tokenised."""

import re

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_INVISIBLE = re.compile(r"[\ufeff\u00ad]")  # byte order mark, soft hyphen


def clean(text: str) -> str:
    """Text without outer or repeated spaces, control characters or blank lines."""
    text = _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _CONTROL.sub(" ", text)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)
