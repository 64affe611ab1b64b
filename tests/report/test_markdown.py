"""Markdown displays what comes from run folders, which has no other effect."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gpt1_jax.report.markdown import code_block, escape, escape_strings, markdown_table

NASTY = [
    "<script>alert(1)</script>",
    "![x](http://example.com/x.png)",
    "[a](javascript:alert(1)) `code` *b* __c__ _d_ ~~e~~",
    "a | b \\| c & &amp; $x$ # h",
    "<http://example.com>",
    "snake_case_name _private_ x_",
    "\\",
]


@pytest.mark.parametrize("text", NASTY)
def test_escaped_text_is_only_text(text):
    before = "text "
    children = MarkdownIt("commonmark").parseInline(before + escape(text))[0].children
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == before + text


@settings(max_examples=50)
@given(st.text())
def test_any_text_fits_into_a_cell(text):
    table = markdown_table(["a", "b"], [["x" + escape(text), "end"]], text_columns=2)
    tokens = MarkdownIt("commonmark").enable("table").parse(table)
    cells = [t for t in tokens if t.type == "inline"][2:]
    assert len(cells) == 2 and cells[1].content == "end"
    assert {c.type for c in cells[0].children} <= {"text", "text_special"}
    escape(text).encode()


def test_invisible_characters_are_replaced():
    assert escape("a\x00b\u202ec\ud800d\n e") == "a\ufffdb\ufffdc\ufffdd e"
    assert "\ud800" not in code_block("\ud800")


@pytest.mark.parametrize("text", ["a\n\n# b", "```\n</code>", "`````", "</pre><b>"])
def test_text_stays_in_its_code_block(text):
    tokens = MarkdownIt("commonmark").parse(code_block(text))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content == text + "\n"


def test_strings_within_a_value_are_escaped():
    value = {"a_": ["<b>", {"c": "*"}, 1, None, 2.5]}
    assert escape_strings(value) == {"a_": [r"\<b\>", {"c": r"\*"}, 1, None, 2.5]}
