"""Lines and columns of words; files that are neither."""

import pytest

from gpt1_jax.data.documents import text_documents
from gpt1_jax.data.tables import read_input
from gpt1_jax.jobs.generate import read_prompts
from gpt1_jax.tasks.examples import check_new_examples
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.word_files import check_source, lines_of, read_lines, read_words


@pytest.fixture
def write(tmp_path):
    def run(name, content):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return run


# --- lines ----------------------------------------------------------------------


def test_lines_know_their_number_and_place(write):
    text = "one é\r\n\n \n  two\u2028three\n\nfour"
    source = write("a.txt", "\ufeff" + text)
    found = list(read_lines(source))
    assert [line.number for line in found] == [1, 4, 6]
    assert [line.text for line in found] == ["one é", "  two\u2028three", "four"]
    assert [line.where for line in found] == [f"{source}:{n}" for n in (1, 4, 6)]
    for line in found:
        assert text[line.start :].startswith(line.text)


def test_lines_are_the_same_in_every_reader(write):
    """A corpus, words to score, prompts and texts to label."""
    text = "one\r\rtwo\u2028two\r\nthree\nfour"
    source = write("a.txt", text)
    (document,) = text_documents(source, "config.data.train", "")
    corpus = "".join(block.text for block in document.blocks())
    lines = [line for line in corpus.split("\n") if line]
    assert lines == ["one", "two\u2028two", "three", "four"]
    assert [line.text for line in read_lines(source)] == lines
    assert [line.number for line in read_lines(source)] == [1, 3, 4, 5]
    assert read_prompts(source) == lines
    examples = check_new_examples(TASKS["sst2"], read_input(source, "example"))
    assert [example.text for example in examples] == [(line,) for line in lines]
    assert [example.where for example in examples] == [
        f"{source}:{n}" for n in (1, 3, 4, 5)
    ]
    table = write("a.tsv", "word\rone\rtwo\r")
    assert [row.word for row in read_words(table, "word")] == ["one", "two"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_utf16_is_named_by_every_reader(write, encoding):
    source = write("a.txt", "one\ntwo\n".encode(encoding))
    (document,) = text_documents(source, "config.data.train", "")
    for read in (
        lambda: list(document.blocks()),
        lambda: list(read_lines(source)),
        lambda: read_prompts(source),
        lambda: check_new_examples(TASKS["sst2"], read_input(source, "example")),
    ):
        with pytest.raises(ValueError, match=r"a\.txt is UTF-16.* iconv -f utf-16"):
            read()


@pytest.mark.parametrize("content", ["", "\n \n\t\n", "\ufeff"])
def test_a_text_without_a_word_is_refused(write, content):
    with pytest.raises(ValueError, match=r"a\.txt holds no word"):
        list(read_lines(write("a.txt", content)))


def test_text_that_is_not_utf8_is_refused_by_its_line(write):
    with pytest.raises(ValueError, match=r"a\.txt:2: byte 0xe9 is not UTF-8"):
        list(read_lines(write("a.txt", b"one\ncaf\xe9\n")))
    with pytest.raises(ValueError, match=r"b\.txt:3: byte 0xe9 is not UTF-8"):
        list(read_lines(write("b.txt", b"\xef\xbb\xbfone\rtwo\rcaf\xe9\rfour")))


def test_half_a_character_is_refused():
    with pytest.raises(ValueError, match=r"config\.text:1: .* lone surrogate"):
        list(lines_of(iter(["a \ud800"]), "config.text"))


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"no/such\.txt cannot be read"):
        list(read_lines("no/such.txt"))


# --- tables ---------------------------------------------------------------------

TABLES = {
    "a.csv": 'item,word,RT\n1,"The, ""x""",250\n1,end.,\n2,New York,310\n',
    "a.tsv": 'item\tword\tRT\n1\tThe, "x"\t250\n1\tend.\t\n2\tNew York\t310\n',
    "a.jsonl": '{"item": 1, "word": "The, \\"x\\"", "RT": 250}\n'
    '{"item": 1, "word": "end.", "RT": null}\n'
    '{"item": 2, "word": "New York", "RT": 310}\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_keep_their_cells(write, name):
    found = list(read_words(write(name, TABLES[name]), "word", "item"))
    assert [row.word for row in found] == ['The, "x"', "end.", "New York"]
    assert [row.text for row in found] == ["1", "1", "2"]
    assert [list(row.cells) for row in found] == [["item", "word", "RT"]] * 3
    assert [str(row.cells["RT"] or "") for row in found] == ["250", "", "310"]
    first = 1 if name == "a.jsonl" else 2
    assert found[2].where.endswith(f"{name}:{first + 2}")


def test_all_rows_are_one_text_by_default(write):
    rows = read_words(write("a.csv", TABLES["a.csv"]), "word")
    assert {row.text for row in rows} == {""}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "w,b\nx,1\n", r"a\.csv:2: .* no column 'word'; .* are w, b\."),
        ("a.csv", "word,b\nx,1\n", r"a\.csv:2: there is no column 'item'"),
        ("a.csv", "word,item\nx,1\n ,1\n", r"a\.csv:3: .* 'word' holds ' ', not a"),
        ("a.jsonl", '{"word": 3, "item": 1}\n', r"a\.jsonl:1: .*'word' holds 3, not"),
        (
            "a.jsonl",
            '{"word": "a", "item": 1}\n{"word": "a", "item": 1, "b": 2}\n',
            r"a\.jsonl:2: the row's columns are word, item, b, those of the first word",
        ),
        ("a.csv", "word,item\n", "holds no row of words"),
        ("a.tsv", b"word\titem\ncaf\xe9\t1\n", r"a\.tsv:2: byte 0xe9 is not UTF-8"),
        ("a.csv", 'word,item\n"a,1\n', r"a\.csv:2: this is not CSV"),
    ],
)
def test_a_row_that_does_not_fit_is_named(write, name, content, message):
    with pytest.raises(ValueError, match=message):
        list(read_words(write(name, content), "word", "item"))


@pytest.mark.parametrize(
    ("source", "column", "message"),
    [
        ("a.doc", "", r"must end in \.txt \(text\) or in \.jsonl, \.tsv, \.csv"),
        ("a.txt", "word", "plain text, which has none"),
        ("a.csv", "", "--config.words_column=NAME"),
    ],
)
def test_the_ending_says_how_a_file_is_read(source, column, message):
    with pytest.raises(ValueError, match=message):
        check_source(source, column)
    check_source("a.TXT", "")
    check_source("a.csv", "word")
