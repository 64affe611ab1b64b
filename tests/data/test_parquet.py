"""Parquet files: their rows, and those that are refused."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpt1_jax.data.records import read_rows, read_texts
from gpt1_jax.errors import UserError

ROWS = [
    {"text": "one", "n": 1, "choices": ["a", "b"], "answers": {"key": ["x"]}},
    {"text": "naïve", "n": 2, "choices": [], "answers": {"key": []}},
    {"text": None, "n": None, "choices": None, "answers": None},
]


@pytest.fixture
def file(tmp_path):
    """Writes columns to a Parquet file, a row group for every two rows."""

    def write(columns=None, **options):
        table = pa.table(columns) if columns else pa.Table.from_pylist(ROWS)
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=2, **options)
        return tmp_path / "a.parquet"

    return write


def test_rows_are_those_that_were_written(file):
    path = file()
    where, cells = zip(*read_rows(path), strict=True)
    assert list(cells) == ROWS
    assert where == tuple(f"{path}, row {number}" for number in (1, 2, 3))
    columns = [cells for _, cells in read_rows(str(path), column="n")]
    assert columns == [{"n": row["n"]} for row in ROWS]
    path = file({" text ": ["a"], "label": ["b"]})  # no blanks around names
    assert [cells for _, cells in read_rows(path)] == [{"text": "a", "label": "b"}]
    assert "".join(read_texts(path, "config.data.train", "text")) == "a\n"


def test_a_compressed_file_of_parquet_is_refused(file):
    packed = (path := file()).rename(f"{path}.gz")
    with pytest.raises(UserError, match=r"is a compressed file of Parquet; unpack it"):
        list(read_rows(packed))


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_rows_are_read_in_any_number_at_a_time(file, monkeypatch, compression):
    monkeypatch.setattr("gpt1_jax.data.parquet._BATCH_BYTES", 100)
    texts = [f"{number % 3} " * 9 for number in range(100)]
    for shared in (True, False):
        how = {"compression": compression, "use_dictionary": shared}
        path = file({"text": texts}, **how)
        assert [cells["text"] for _, cells in read_rows(path)] == texts


def overwrite(path, start, data):
    content = bytearray(path.read_bytes())
    content[start : start + len(data)] = data
    path.write_bytes(content)


NOT_UTF8 = pa.array([b"a", b"\xff"]).view(pa.string())


@pytest.mark.parametrize(
    ("columns", "spoil", "message"),
    [
        (None, lambda p: p.write_bytes(p.read_bytes()[:-40]), "be read as Parquet"),
        (None, lambda p: overwrite(p, 10, b"\xff" * 50), "row 1 on; it may be damaged"),
        (None, lambda p: p.write_bytes(b"plain text"), "cannot be read as Parquet"),
        ({"text": ["a"], " text": ["b"]}, None, "two columns are named 'text'"),
        ({"text": NOT_UTF8}, None, "cannot be read as Parquet .*utf-8"),
        ({"t": ["a"], "n": [1]}, None, "row 1: .* no field 'text'; it has 't',"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    file, columns, spoil, message
):
    path = file(columns)
    if spoil:
        spoil(path)
    with pytest.raises(UserError, match=message) as raised:
        list(read_texts(path, "config.data.train", "text"))
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


def test_a_changed_byte_is_refused_in_one_line_or_does_no_harm(file):
    """Also where the schema or a page stands."""
    path = file()
    whole = path.read_bytes()
    for place in range(4, len(whole), 5):
        overwrite(path, place, bytes([whole[place] ^ 0xA5]))
        try:
            list(read_rows(path))
        except UserError as error:
            assert "\n" not in str(error)
        overwrite(path, place, whole[place : place + 1])
