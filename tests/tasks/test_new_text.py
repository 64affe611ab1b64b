"""New examples in every form they come in."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from gpt1_jax.tasks.new_text import examples_of_lines, read_examples
from gpt1_jax.tasks.paper_tasks import TASKS

SST2, RTE, COPA, RACE, SNLI = (
    TASKS[name] for name in ("sst2", "rte", "copa", "race", "snli")
)


@pytest.fixture(params=["file", "standard input"])
def read(request, tmp_path, monkeypatch):
    """`read(task, content, name)`: the examples of a file, or of standard input."""

    def run(task, content, name="a.txt"):
        data = content if isinstance(content, bytes) else content.encode()
        if request.param == "file":
            (tmp_path / name).write_bytes(data)
            return read_examples(task, str(tmp_path / name))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        return read_examples(task, "-")

    return run


@pytest.fixture
def of_file(tmp_path):
    """`of_file(task, name, content)`: the examples of a file."""

    def run(task, name, content):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return read_examples(task, str(tmp_path / name))

    return run


def texts(examples):
    return [example.text for example in examples]


# --- plain lines ----------------------------------------------------------------


def test_lines_that_are_not_blank_are_examples(read):
    examples = read(SST2, "\ufeffone\u2028text\r\n\n \nanother {one}")
    assert texts(examples) == [("one\u2028text",), ("another {one}",)]
    assert [e.where.rpartition(":")[2] for e in examples] == ["1", "4"]
    assert {(e.id, e.label, e.choices) for e in examples} == {("", None, ())}


def test_texts_of_a_line_are_separated_by_tabs(read):
    assert texts(read(RTE, "a b\tc\n")) == [("a b", "c")]
    (example,) = read(COPA, "It rained.\teffect\twet\tdry\n")
    assert example.text == ("It rained.", "What happened as a result?")
    assert example.choices == ("wet", "dry")
    (example,) = read(RACE, "A story.\tWho?\ta\tb\tc\td\n")
    assert (example.text, example.choices) == (("A story.", "Who?"), (*"abcd",))


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        (SST2, "a\tb", "SST-2 needs 1 texts .*, sentence, but the line holds 2"),
        (RTE, "a", "RTE needs 2 .* sentence1, sentence2, but the line holds 1"),
        (COPA, "a\tcause\tb", "COPA needs 4 .* choice1, choice2, but the line holds 3"),
        (RTE, "a\t ", "the text in column 'sentence2' is empty"),
        (SST2, b"caf\xe9 noir", "byte 0xe9 is not UTF-8 .* iconv"),
    ],
)
def test_line_that_does_not_fit_is_named(read, task, line, message):
    good = "\t".join(["good"] * (len(task.text) + len(task.choices)))
    line = line if isinstance(line, bytes) else line.encode()
    with pytest.raises(ValueError, match=f"(a.txt|standard input):3: .*{message}"):
        read(task, good.encode() + b"\n\n" + line)


def test_lines_in_memory_are_examples_too():
    assert texts(examples_of_lines(SST2, ["a b", " ", "c\n"], "text")) == [
        ("a b",),
        ("c",),
    ]
    with pytest.raises(ValueError, match=r"text:2: '\\udce9' .* half of a character"):
        examples_of_lines(SST2, ["fine", "caf\udce9"], "text")
    assert examples_of_lines(SST2, [""], "text") == []


# --- columns --------------------------------------------------------------------

ROWS = [
    {"id": "r7", "sentence1": "one", "sentence2": "two", "label": "unheard of"},
    {"id": "r9", "sentence1": "three", "sentence2": "four", "label": ""},
]


def as_table(rows, delimiter):
    lines = [rows[0], *(row.values() for row in rows)]
    return "".join(delimiter.join(line) + "\n" for line in lines)


def as_json(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", as_table(ROWS, ",")),
        ("a.CSV", as_table(ROWS, ",")),
        ("a.tsv", as_table(ROWS, "\t")),
        ("a.jsonl", as_json(ROWS)),
        ("a.json", as_json(ROWS)),
    ],
)
def test_columns_have_names_and_labels_are_ignored(of_file, name, content):
    examples = of_file(RTE, name, content)
    assert texts(examples) == [("one", "two"), ("three", "four")]
    assert [example.id for example in examples] == ["r7", "r9"]
    assert {example.label for example in examples} == {None}


@pytest.mark.parametrize("before", ["", "\ufeff", "\n \n"])
def test_standard_input_may_be_json_lines(monkeypatch, before):
    data = (before + as_json(ROWS)).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    examples = read_examples(RTE, "-")
    assert texts(examples) == [("one", "two"), ("three", "four")]
    where = before.count("\n") + 1
    assert examples[0].where == f"standard input:{where}"


def test_columns_of_choices_may_be_a_list(of_file):
    row = {"article": "A.", "question": "", "options": [*"abcd"], "example_id": "high1"}
    (example,) = of_file(RACE, "a.jsonl", json.dumps(row))
    assert (example.choices, example.subset) == ((*"abcd",), "high")


def test_examples_are_kept_where_training_drops_them(of_file):
    row = {"premise": "A.", "hypothesis": "B.", "label": -1}
    assert len(of_file(SNLI, "a.jsonl", as_json([row]))) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text\nwell\n", r"a\.csv:2: .*'sentence'; the columns are text"),
        ("a.tsv", "sentence\na\tb\n", r"a\.tsv:2: the row has 2 columns"),
        ("a.tsv", b"sentence\ncaf\xe9\n", r"a\.tsv:2: byte 0xe9 is not UTF-8"),
        ("a.jsonl", '{"sentence": "a"}\n{"text": "b"}', r"a\.jsonl:2: .*'sentence'"),
        ("a.jsonl", '{"sentence": ""}', r"a\.jsonl:1: the text in .* is empty"),
        ("a.jsonl", '{"sentence": 3}', r"a\.jsonl:1: .*'sentence' holds 3, not text"),
        ("a.jsonl", r'{"sentence": "\udc00"}', r"a\.jsonl:1: .* half of a character"),
        ("a.jsonl", "sentence", r"a\.jsonl:1: this is not JSON"),
        ("a.json", "[1]", r"a\.json:1: this is \[1\], not a JSON object"),
        ("a.csv", "sentence\n", r"a\.csv holds no example"),
        ("a.txt", "\n \n", r"a\.txt holds no example"),
    ],
)
def test_file_that_cannot_be_read_is_named(of_file, name, content, message):
    with pytest.raises(ValueError, match=message):
        of_file(SST2, name, content)


@pytest.mark.parametrize("name", ["no.txt", ""])
def test_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=r"cannot be read .* standard input"):
        read_examples(SST2, str(tmp_path / name))
