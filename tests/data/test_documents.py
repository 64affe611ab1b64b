"""Text cut into blocks."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data import documents
from gpt1_jax.data.documents import read_blocks
from gpt1_jax.data.text import clean

few = settings(deadline=None, max_examples=150)

BLOCK = 16


def small_blocks(chunks: list[str]) -> list[documents.Block]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "BLOCK_CHARS", BLOCK)
        return list(read_blocks(chunks))


chunks_of_text = st.lists(st.text("ab \n", max_size=40), max_size=6)


@few
@given(chunks=chunks_of_text)
@example(chunks=["a" * 100])
@example(chunks=[" " * 100])
@example(chunks=["\n" * 100])
@example(chunks=["a" * 16 + "\n"])
def test_read_blocks_lose_nothing(chunks):
    blocks = small_blocks(chunks)
    assert "".join(block.text for block in blocks) == "".join(chunks)
    assert all(0 < len(block.text) <= BLOCK for block in blocks)
    for block in blocks[:-1]:
        assert block.ends_line == block.text.endswith("\n")
    assert all(block.ends_line for block in blocks[-1:])


@few
@given(chunks=chunks_of_text)
def test_read_blocks_do_not_depend_on_chunks(chunks):
    assert small_blocks(chunks) == small_blocks(["".join(chunks)])


words_and_gaps = st.lists(
    st.tuples(
        st.text("ab", min_size=1, max_size=5),
        st.sampled_from([" ", "  ", "\n", "\n\n", " \n"]),
    ),
    max_size=40,
)


@few
@given(pairs=words_and_gaps)
@example(pairs=[("aaaaa", " "), ("bbbbb", " "), ("aaa", " \n"), ("b", "\n")])
@example(pairs=[("aaaaa", " "), ("bbbbb", " "), ("aaaa", "\n"), ("b", "\n")])
def test_read_blocks_keep_words_whole_and_line_ends(pairs):
    """Blocks cleaned one by one give the whole text, as `prepare` joins them."""
    text = "".join(word + gap for word, gap in pairs)
    joined = ""
    for block in small_blocks([text]):
        cleaned = clean(block.text)
        if cleaned:
            joined += cleaned + ("\n" if block.ends_line else " ")
    assert joined.rstrip("\n") == clean(text)


def test_read_blocks_cut_a_long_line_at_a_space():
    text = "aaaa bbbb cccc dddd eeee ffff"
    assert small_blocks([text]) == [
        ("aaaa bbbb cccc ", False),
        ("dddd eeee ffff", True),
    ]


def test_read_blocks_of_nothing_are_none():
    assert small_blocks([]) == small_blocks(["", ""]) == []


def test_the_time_to_cut_a_line_grows_with_its_length():
    """Four times for four times the length; 38 times when each cut copied the rest."""

    def seconds(millions):
        text = "a " * (millions * 500_000)
        begin = time.process_time()
        assert sum(len(block.text) for block in read_blocks([text])) == len(text)
        return time.process_time() - begin

    assert seconds(64) < 12 * min(seconds(16) for _ in range(3))
