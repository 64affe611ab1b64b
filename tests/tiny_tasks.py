"""Made-up tasks whose answer can be seen in the words, and runs on them."""

import dataclasses
import json
import random
from pathlib import Path

import jax
from tiny_run import job_config

from gpt1_jax.config.flat import flatten

SIGNS = ("aaaa", "jjjj")  # of the labels 0 and 1
_WORDS = ("bcd", "efg", "hi", "cbe", "gif", "dh", "feb", "ice")


def tiny_finetune_overrides(init_from, data_dir):
    """Overrides of configs/finetune.py: 3 epochs of 4 steps, batches of one shape."""
    data = dict(source="jsonl", dir=str(data_dir))
    xla = jax.config.jax_compilation_cache_dir
    return flatten(
        {
            "init_from": str(init_from),
            "data": {**data, "seq_len_buckets": (40,), "unpadded_sizes": 1},
            "optimizer": dict(learning_rate=0.04),
            "train": dict(batch_size=8, compilation_cache_dir=xla),
            "eval": dict(batch_size=8, first_epoch_steps=(2,)),
            "log": dict(every_steps=1, tensorboard=False),
        }
    )


def finetune_config(tasks, base, **overrides):
    """The frozen configuration of `tasks` with `base` and `section__key` overrides."""
    return job_config("finetune", tasks, **{**base, **overrides})


def custom_config(base, paths, **overrides):
    """The frozen configuration of a task of one's own, from files by split."""
    files = {f"data__{split}": str(path) for split, path in paths.items()}
    base = {**base, "data.source": "files", "data.dir": ""}
    return finetune_config("custom", base, **{**files, **overrides})


def changed(task, part, **values):
    """A task with other values in one of its parts."""
    other = dataclasses.replace(getattr(task, part), **values)
    return dataclasses.replace(task, **{part: other})


def sentence(rng, sign, length=5):
    """Words with a label's sign among them."""
    words = rng.choices(_WORDS, k=length - 1)
    words.insert(rng.randrange(length), sign)
    return " ".join(words)


def rows(task, count, seed, labelled=True):
    """Examples with the columns of a task of the table."""
    rng, made = random.Random(seed), []
    for k in range(count):
        label = k % 2
        sign, other = SIGNS[label], SIGNS[1 - label]
        if task in ("sst2", "cola"):
            row = {"sentence": sentence(rng, sign)}
        elif task == "copa":
            choices = [sentence(rng, SIGNS[i == label], 3) for i in (0, 1)]
            row = {"premise": sentence(rng, other), "question": "cause"}
            row |= dict(zip(("choice1", "choice2"), choices, strict=True))
        elif task in ROWS:
            row = ROWS[task](rng, sign, other, label)
        else:
            row = {"sentence1": sentence(rng, sign, 4)}
            row["sentence2"] = sentence(rng, SIGNS[0], 4)
        if labelled:
            row["label"] = 5.0 * label if task == "stsb" else label
        made.append({**row, "idx": k})
    return made


def _race(rng, sign, other, label):
    options = [sentence(rng, SIGNS[i == label], 2) for i in range(4)]
    row = {"article": sentence(rng, sign), "question": "bad?", "options": options}
    return {**row, "answer": "ABCD"[label], "example_id": "high/1.txt"}


def _story_cloze(rng, sign, other, label):
    endings = [sentence(rng, SIGNS[i == label], 3) for i in (0, 1)]
    return {"context": sentence(rng, sign), "endings": endings}


def _dpr(rng, sign, other, label):
    text = f"{SIGNS[0]} hid {SIGNS[1]} as it fed {sentence(rng, sign, 2)}."
    return {"sentence": text, "pronoun": "it", "candidates": list(SIGNS)}


def _wsc273(rng, sign, other, label):
    begin = f"{SIGNS[0]} hid {SIGNS[1]} as "
    text = f"{begin}it fed {sentence(rng, sign, 2)}."
    place = {"pronoun_start": len(begin), "pronoun_end": len(begin) + 2}
    options = {"option1": SIGNS[0], "option2": SIGNS[1]}
    return {"text": text, "pronoun_text": "it", **place, **options}


def _boolq(rng, sign, other, label):
    return {"question": f"is it {SIGNS[0]}?", "passage": sentence(rng, sign, 4)}


def _multirc(rng, sign, other, label):
    answer = {"question": "bad?", "answer": sentence(rng, sign, 2)}
    return {**answer, "paragraph": sentence(rng, SIGNS[0], 3)}


def _wsc(rng, sign, other, label):
    spans = {"span1_text": sign, "span2_text": "it"}
    return {**spans, "text": f"{sentence(rng, SIGNS[0], 3)} hid as it fed."}


ROWS = {
    "race": _race,
    "story_cloze": _story_cloze,
    "dpr": _dpr,
    "wsc273": _wsc273,
    "boolq": _boolq,
    "multirc": _multirc,
    "wsc": _wsc,
}  # columns of tasks by name, but for the label


def write_lines(path, rows):
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_task(folder, task, *, train=32, dev=12, test=0, labelled_test=False):
    """The files of a task as the source "jsonl" reads them."""
    for seed, (split, count) in enumerate(
        (("train", train), ("dev", dev), ("test", test))
    ):
        if count:
            labelled = split != "test" or labelled_test
            made = rows(task, count, seed, labelled)
            write_lines(folder / task / f"{split}.jsonl", made)


def read_lines(path):
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
