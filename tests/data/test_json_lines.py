"""JSON lines: what is refused, and what the columns that are not used may hold."""

import pytest

from gpt1_jax.data.json_lines import read_json_lines
from gpt1_jax.errors import UserError


def test_of_one_json_column_the_others_may_hold_anything():
    """Titles of crawled text are often cut within a character."""
    line = r'{"title": "\ud83d", "text": "a"}'
    ((_, cells),) = read_json_lines([line], "a", "text")
    assert cells["text"] == "a"
    with pytest.raises(UserError, match=r"a:1: .* half of a character"):
        list(read_json_lines([line], "a"))
