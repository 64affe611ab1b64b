"""Where sentences begin."""

import re

import sentencex


def sentence_starts(text: str) -> list[int]:
    """Where the sentences of a line begin: characters before each.

    By sentencex's rules for English, which know abbreviations ("Mr.", "e.g.", "p.m.")
    and keep what stands between quotation marks or brackets in the sentence around it.

    Args:
      text: a line, such as a paragraph.
    """
    # White space of several bytes makes some versions of sentencex panic.
    plain = re.sub(r"\s", " ", text)
    found = sentencex.get_sentence_boundaries("en", plain)
    return [each["start_index"] for each in found if each["text"].strip()]
