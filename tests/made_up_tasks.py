"""Made-up examples of every task, and writers of them in the form of each source."""

import csv
import dataclasses
import json
import types
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet
import pytest
from tiny_tasks import write_lines

from gpt1_jax.tasks.examples import load_split
from gpt1_jax.tasks.task import Example, Task

SUBSETS = {"mnli": ("matched", "mismatched"), "race": ("middle", "high")}
LABELLED_TESTS = ("snli", "sci_tail", "race", "story_cloze")
SCORES = (3.8, 0.0, 5.0, 1.667)


class MadeUp(NamedTuple):
    """An example as all sources should give it, but for COPA's wording."""

    text: tuple[str, ...]
    choices: tuple[str, ...]
    label: int | float | None
    subset: str


def example_to_predict(number=0, *, label=None, subset="", id=None) -> Example:
    """An example of a test split, with the number as its id by default."""
    name = str(number) if id is None else id
    where = f"test.tsv:{number + 2}"
    return Example(("a text",), (), label, name, subset, where, number)


def made_up(task: Task, split: str, count: int = 4) -> list[MadeUp]:
    """`count` examples of each subset, with what breaks careless readers."""
    subsets = SUBSETS.get(task.name, ("",))
    if task.name == "mnli":
        subsets = {"train": ("",), "test": (*subsets, "ax")}.get(split, subsets)
    made = []
    for subset in subsets:
        for k in range(count):
            text = [
                f'{task.name} {split}{subset} {c} {k}: "naïve, ’'
                for c in task.inputs.text
            ]
            if task.name == "story_cloze":
                text = [" ".join(f"{text[0]} {part}." for part in "abcd")]
            if task.name == "copa":
                text[1] = ("cause", "effect")[k % 2]
            if task.name == "race":
                text[0] = f"{task.name} {split}{subset} passage {k // 2},\n2 lines."
            choices = [f'{split}{subset} {k}, "choice {c}' for c in task.target.labels]
            label: int | float | None = k % max(len(task.target.labels), 1)
            if task.target.score_range:
                label = SCORES[k % len(SCORES)]
            if split == "test" and task.name not in LABELLED_TESTS:
                label = None
            shown = tuple(choices) if task.inputs.choices else ()
            made.append(MadeUp(tuple(text), shown, label, subset))
    return made


def columns(task: Task, made: MadeUp) -> dict:
    """As TFDS names them, without the label."""
    named: dict = dict(zip(task.inputs.text, made.text, strict=True))
    if len(task.inputs.choices) == 1:
        return {**named, task.inputs.choices[0]: list(made.choices)}
    return {**named, **dict(zip(task.inputs.choices, made.choices, strict=True))}


def passages(made: list[MadeUp]) -> list[dict]:
    """RACE's, of two questions each."""
    found = []
    for number in range(0, len(made), 2):
        pair = made[number : number + 2]
        passage = {"article": pair[0].text[0]}
        passage["questions"] = [each.text[1] for each in pair]
        passage["options"] = [list(each.choices) for each in pair]
        passage["answers"] = ["ABCD"[each.label] for each in pair]
        found.append({**passage, "example_id": f"{pair[0].subset}{number // 2}.txt"})
    return found


def by_subset(made: list[MadeUp]) -> dict[str, list[MadeUp]]:
    return {s: [m for m in made if m.subset == s] for s in {m.subset: 0 for m in made}}


def write_jsonl(task: Task, split: str, made: list[MadeUp], folder: Path) -> None:
    rows: dict[str, list[dict]] = {}
    for k, example in enumerate(made):
        row = columns(task, example)
        if example.label is not None:
            row[task.target.column] = example.label
        stem = split
        if task.name == "race":
            row |= {"answer": "ABCD"[example.label]}
            row |= {"example_id": f"{example.subset}/{k}.txt"}
        elif example.subset in ("mismatched", "ax"):
            stem = f"{split}_{example.subset}"
        rows.setdefault(stem, []).append(row)
    for stem, lines in rows.items():
        write_lines(folder / task.name / f"{stem}.jsonl", lines)


def write_babylm(task: Task, split: str, rows: list[dict], folder: Path) -> Path:
    """The file of a split, by our name of it."""
    name = {"train": "train", "dev": "valid"}[split]
    return write_lines(folder / f"{task.name}.{name}.jsonl", rows)


_PAIR, _ROW, _ONE = "index\tsentence1\tsentence2", "{i}\t{0}\t{1}", "{i}\t{0}"
_MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2"
)
_STSB = (
    "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
)
_MRPC, _QQP = "#1 ID\t#2 ID\t#1 String\t#2 String", "id\tquestion1\tquestion2"
# The folder; the first line and the rows without labels.
_GLUE = {
    "mnli": ("MNLI", _MNLI, "{i}\t1\t1n\tfiction\t( a\t( b\t(ROOT\t(ROOT\t{0}\t{1}"),
    "qnli": ("QNLI", "index\tquestion\tsentence", _ROW),
    "rte": ("RTE", _PAIR, _ROW),
    "wnli": ("WNLI", _PAIR, _ROW),
    "mrpc": ("MRPC", f"index\t{_MRPC}", "{i}\t10{i}\t11{i}\t{0}\t{1}"),
    "qqp": ("QQP", _QQP, _ROW),
    "stsb": ("STS-B", _STSB, "{i}\tnews\tfile\t2012\t0001\tnone\tnone\t{0}\t{1}"),
    "cola": ("CoLA", "index\tsentence", _ONE),
    "sst2": ("SST-2", "index\tsentence", _ONE),
}
# What labels add to them, or both with labels.
_ADDED = {
    "mnli train": ("label1\tgold_label", "neutral\t{name}"),
    "mnli dev": ("label1\tlabel2\tgold_label", "x\ty\t{name}"),
    "qnli": ("label", "{name}"),
    "rte": ("label", "{name}"),
    "wnli": ("label", "{label}"),
    "stsb": ("score", "{label:.3f}"),
}
_LABELLED = {
    "mrpc": (f"\ufeffQuality\t{_MRPC}", "{label}\t10{i}\t11{i}\t{0}\t{1}"),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "{i}\t3{i}\t4{i}\t{0}\t{1}\t{label}",
    ),
    "cola": ("", "gj04\t{label}\t\t{0}"),
    "sst2": ("sentence\tlabel", "{0}\t{label}"),
}


def write_official(task: Task, split: str, made: list[MadeUp], folder: Path) -> None:
    for subset, examples in by_subset(made).items():
        _OFFICIAL.get(task.name, _write_glue)(task, split, subset, examples, folder)


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def _write_glue(task, split, subset, made, folder):
    name, header, row = _GLUE[task.name]
    if subset == "ax":
        header, row = _PAIR, _ROW
    elif split != "test":
        added = _ADDED.get(f"{task.name} {split}") or _ADDED.get(task.name)
        both = added and (f"{header}\t{added[0]}", f"{row}\t{added[1]}")
        header, row = both or _LABELLED[task.name]
    lines = [header] if header else []
    for i, example in enumerate(made):
        label = example.label
        known = task.target.labels and label is not None
        name_of = task.target.labels[label] if known else ""
        lines.append(row.format(*example.text, i=i, label=label, name=name_of))
    path = folder / name / f"{split}{subset and f'_{subset}'}.tsv"
    if subset == "ax":
        path = folder / "diagnostic" / "diagnostic.tsv"
    _write(path, lines)


def _write_snli(task, split, subset, made, folder):
    rows = [
        {"annotator_labels": [], "captionID": "1.jpg#1", "pairID": f"1.jpg#1n{i}"}
        | {"gold_label": task.target.labels[example.label]}
        | dict(zip(("sentence1", "sentence2"), example.text, strict=True))
        for i, example in enumerate(made)
    ]
    rows.insert(1, {**rows[0], "gold_label": "-"})
    path = folder / "snli_1.0" / f"snli_1.0_{split}.jsonl"
    _write(path, [json.dumps(row) for row in rows])


def _write_scitail(task, split, subset, made, folder):
    path = folder / "SciTailV1.1" / "tsv_format" / f"scitail_1.0_{split}.tsv"
    _write(path, ["\t".join([*m.text, task.target.labels[m.label]]) for m in made])


def _write_race(task, split, subset, made, folder):
    for number, passage in enumerate(passages(made)):
        row = {**passage, "id": passage.pop("example_id")}
        _write(folder / "RACE" / split / subset / f"{number}.txt", [json.dumps(row)])


def _write_story(task, split, subset, made, folder):
    name = {"dev": "val", "test": "test"}[split]
    path = folder / f"cloze_test_{name}__spring2016 - cloze_test_ALL_{name}.csv"
    sentences = [f"InputSentence{i}" for i in (1, 2, 3, 4)]
    endings = ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["InputStoryid", *sentences, *endings, "AnswerRightEnding"])
        for i, m in enumerate(made):
            parts = [part + "." for part in m.text[0].removesuffix(".").split(". ")]
            writer.writerow([f"id-{i}", *parts, *m.choices, m.label + 1])


def _write_super_glue(task, split, subset, made, folder):
    rows = [{**columns(task, example), "idx": i} for i, example in enumerate(made)]
    for row, example in zip(rows, made, strict=True):
        if example.label is not None:
            row["label"] = (
                bool(example.label) if task.name == "boolq" else example.label
            )
    name = {"dev": "val"}.get(split, split)
    path = folder / task.title / f"{name}.jsonl"
    _write(path, [json.dumps(row) for row in rows])


_OFFICIAL = {"snli": _write_snli, "sci_tail": _write_scitail, "race": _write_race}
_OFFICIAL |= {"story_cloze": _write_story}
_OFFICIAL |= dict.fromkeys(("copa", "boolq"), _write_super_glue)


_HUB = "hf://datasets/"


def write_hub(task: Task, split: str, made: list[MadeUp], folder: Path) -> None:
    """Parquet files at FOLDER/ORG/NAME[@REVISION]/.., of the types that the Hub has."""
    for subset, examples in by_subset(made).items():
        rows = [_hub_row(task, i, m) for i, m in enumerate(examples)]
        write_hub_file(task.published.hub[split][subset], rows, folder)


def write_hub_file(address: str, rows: list[dict], folder: Path) -> Path:
    """The Parquet file at an address, whose `*` stands for a number."""
    path = folder / address.removeprefix(_HUB).replace("*", "00000-of-00001")
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(rows)
    narrow = {"int64": pyarrow.int32(), "double": pyarrow.float32()}
    for number, field in enumerate(table.schema):
        if field.name == "idx" or field.type == "double":
            kind = narrow.get(str(field.type), field.type)
            table = table.set_column(number, field.name, table[number].cast(kind))
    pyarrow.parquet.write_table(table, path)
    return path


def _hub_row(task: Task, index: int, made: MadeUp) -> dict:
    if task.name == "race":
        answer = {"answer": "ABCD"[made.label]}
        row = {**columns(task, made), **answer}
        return {**row, "example_id": f"{made.subset}{index}.txt"}
    row = _tfds_row(task, index, made)
    if task.name == "sci_tail":
        row["label"] = task.target.labels[made.label]
    if task.name == "stsb":
        row["label"] = float(row["label"])
    return row


def on_disk(task: Task, folder: Path) -> Task:
    """A task whose files of the Hub lie where `write_hub` has written them."""
    hub = {
        split: {
            name: each.replace(_HUB, f"{folder}/") for name, each in subsets.items()
        }
        for split, subsets in task.published.hub.items()
    }
    published = dataclasses.replace(task.published, hub=hub)
    return dataclasses.replace(task, published=published)


def prepare_tfds(task: Task, splits: dict[str, list[MadeUp]], folder: Path) -> None:
    """Has TFDS' own builders prepare the examples as ArrayRecord."""
    datasets: dict[str, dict[str, list[dict]]] = {}
    for split, made in splits.items():
        for subset, examples in by_subset(made).items():
            name, _, part = task.published.tfds[split][subset].partition(":")
            rows = [_tfds_row(task, i, m) for i, m in enumerate(examples)]
            rows = passages(examples) if task.name == "race" else rows
            datasets.setdefault(name, {})[part] = rows
    for name, parts in datasets.items():
        prepare_dataset(name, parts, folder)


def _tfds_row(task: Task, index: int, made: MadeUp) -> dict:
    row = columns(task, made)
    if task.name not in ("snli", "sci_tail", "story_cloze"):
        row["idx"] = index
    if task.name == "multirc":
        row["idx"] = {"paragraph": index, "question": 0, "answer": 1}
    if task.name == "wsc":
        row |= {"span1_index": 0, "span2_index": 1}
    label = -1 if made.label is None else made.label
    if task.name == "story_cloze":
        label += 1
    return {**row, task.target.column: label}


def prepare_dataset(name: str, parts: dict[str, list[dict]], folder: Path) -> None:
    """Has the builder of a dataset prepare the rows of its splits."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.features import feature
    from tensorflow_datasets.text import super_glue

    with pytest.MonkeyPatch.context() as patch:
        # What TFDS asks TensorFlow for, to prepare COPA and RACE.
        patch.setattr(super_glue, "tf", types.SimpleNamespace(int32=np.int32))
        patch.setattr(feature.TensorInfo, "dtype", property(lambda i: i.np_dtype))
        builder = tfds.builder(name, data_dir=folder, file_format="array_record")
        generators = {part: enumerate(rows) for part, rows in parts.items()}
        patch.setattr(builder, "_split_generators", lambda dl_manager: generators)
        builder.download_and_prepare()


def load(task, split, source, directory, **paths):
    """The examples of a split; `paths` are files of the user's own."""
    if source == "hub":
        task, directory = on_disk(task, directory), ""
    return load_split(
        task, split, source=source, directory=str(directory), paths=paths or None
    )
