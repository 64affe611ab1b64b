"""Each job that reads a file reads every format and compression, to the same result."""

import csv
import io
import json

import pytest
from compressed import COMPRESS
from made_up_tokenizer import Characters
from tiny_tasks import finetune_config

from gpt1_jax.data.named_texts import texts_in_files
from gpt1_jax.jobs.generate import read_prompts
from gpt1_jax.studies.config import PairsDataConfig
from gpt1_jax.studies.pairs import load_pairs, select_pairs
from gpt1_jax.tasks.examples import load_split
from gpt1_jax.tasks.paper_tasks import select_tasks

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

BASE = {"init_from": "base"}
# Numbers and bools are among the texts, as a table of one's own may have them.
ROWS = [
    {
        "text": f'A "text", naïve \u2028 {number}',
        "prompt": number,
        "label": number % 2 == 0,
        "good": f"It {number} is.",
        "bad": f"It {number} are.",
        "word": 1900 + number if number % 3 == 0 else f"w{number},",
        "story": f"s{number // 4}",
    }
    for number in range(12)
]


def separated(**dialect):
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(ROWS[0]), **dialect)
    writer.writeheader()
    writer.writerows(ROWS)
    return file.getvalue().encode()


def parquet():
    file = io.BytesIO()
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    columns["word"] = [str(word) for word in columns["word"]]  # one type a column
    pq.write_table(pa.table(columns), file, row_group_size=5)
    return file.getvalue()


LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
TSV = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
FORMATS = {
    ".jsonl": LINES,
    ".ndjson": LINES,
    ".json": json.dumps(ROWS, indent=1).encode(),
    ".csv": separated(),
    ".tsv": separated(**TSV),
    ".parquet": parquet(),
}
NAMES = [f"a{suffix}" for suffix in FORMATS]
COMPRESSED = [f"a.jsonl{compression}" for compression in COMPRESS if compression]


@pytest.fixture
def write_rows(write):
    """`write_rows(name)`: the rows in the format, and compressed, as the name says."""

    def make(name):
        _, suffix, *compression = name.split(".")
        compress = COMPRESS["".join(f".{each}" for each in compression)]
        return write(name, compress(FORMATS[f".{suffix}"]))

    return make


def training_text(path):
    (document,) = texts_in_files(path, "config.data.train", "text")
    return "".join(document.blocks())


def own_examples(path):
    custom = {"custom__head": "classification", "custom__text": ("text", "prompt")}
    config = finetune_config("custom", BASE, data__train=path, **custom)
    (task,), _ = select_tasks(config)
    examples = load_split(
        task, "train", source="files", directory="", paths={"train": path}
    )
    assert task.target.labels == ("False", "True")
    return [(each.text, each.label) for each in examples]


def pairs(path):
    columns = {"sentences": ("good", "bad"), "good": "", "context": "word"}
    columns |= {"paradigm": "story", "max_pairs": 0}
    data = PairsDataConfig(source="files", dir="", files=path, **columns)
    (task,) = select_pairs(("custom",), data)
    assert task.task.name == "a"
    windows = load_pairs(task, data, Characters(), 96).windows
    return [(list(each.ids), each.num_context) for each in windows]


READERS = {
    each.__name__: each for each in (training_text, own_examples, pairs, read_prompts)
}


@pytest.mark.parametrize(
    ("job", "name"),
    [
        *((job, name) for job in READERS for name in NAMES),
        *(("training_text", name) for name in COMPRESSED),
        *((job, "a.ndjson.gz") for job in READERS),
    ],
)
def test_every_job_reads_every_format(write_rows, job, name):
    """And any compression, as all open their files alike."""
    read = READERS[job]
    found = read(write_rows(name))
    assert found and found == read(write_rows("a.csv.xz"))
