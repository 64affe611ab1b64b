"""Each job that reads a file reads every format and compression, to the same result."""

import pytest
from compressed import COMPRESS
from etils import epath
from made_up_tokenizer import Characters
from tiny_tasks import finetune_config

from gpt1_jax.data.named_texts import texts_in_files
from gpt1_jax.data.tables import write_own_table
from gpt1_jax.jobs.generate import read_prompts
from gpt1_jax.studies.config import PairsDataConfig
from gpt1_jax.studies.pairs import load_pairs, select_pairs
from gpt1_jax.tasks.examples import load_split
from gpt1_jax.tasks.paper_tasks import select_tasks

pytest.importorskip("pyarrow")

# Numbers and bools are among the texts, as a table of one's own may have them.
COLUMNS = {
    "text": [f'A "text", naïve \u2028 {number}' for number in range(12)],
    "prompt": list(range(12)),
    "label": [number % 2 == 0 for number in range(12)],
    "good": [f"It {number} is." for number in range(12)],
    "bad": [f"It {number} are." for number in range(12)],
    "word": list(range(1900, 1912)),
    "story": [f"s{number // 4}" for number in range(12)],
}
NAMES = ["a.jsonl", "a.ndjson", "a.json", "a.csv", "a.tsv", "a.parquet"]
COMPRESSED = [f"a.jsonl{compression}" for compression in COMPRESS if compression]


@pytest.fixture
def write_rows(tmp_path):
    """`write_rows(name)`: the rows in the format, and compressed, as the name says."""

    def make(name):
        path, (_, suffix, *packed) = epath.Path(tmp_path) / name, name.split(".")
        is_json = suffix in ("ndjson", "json")
        write_own_table(path, COLUMNS, ".jsonl" if is_json else f".{suffix}")
        if suffix == "json":
            lines = path.read_text().strip().split("\n")
            path.write_text("[" + ",\n".join(lines) + "]")
        for compression in packed:
            path.write_bytes(COMPRESS[f".{compression}"](path.read_bytes()))
        return str(path)

    return make


def training_text(path):
    (document,) = texts_in_files(path, "config.data.train", "text")
    return "".join(document.blocks())


def own_examples(path):
    custom = {"custom__head": "classification", "custom__text": ("text", "prompt")}
    base = {"init_from": "base"}
    config = finetune_config("custom", base, data__train=path, **custom)
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
