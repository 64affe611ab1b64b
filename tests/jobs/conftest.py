"""Runs that several files of jobs' tests read, and runs without training."""

import pytest
from tiny_tasks import custom_config, finetune_config, rows, write_lines

from gpt1_jax.data.files import write_json
from gpt1_jax.finetuning.results import FILE_DIGESTS
from gpt1_jax.formats import RESULTS
from gpt1_jax.jobs import finetune
from gpt1_jax.runs.folder import write_config_and_tokenizer
from gpt1_jax.runs.resume import DIGESTS, begin_run


@pytest.fixture(scope="session")
def choosing(finetune_base, made_once):
    """A run on COPA: two columns of text, two of choices."""

    def make(folder):
        for seed, split in enumerate(("train", "dev")):
            write_lines(folder / "copa" / f"{split}.jsonl", rows("copa", 16, seed))
        base = {**finetune_base, "data.dir": str(folder)}
        config = finetune_config("copa", base, train__num_epochs=1.0)
        finetune.run(config, str(folder / "run"))

    return made_once("choosing", make) / "run"


@pytest.fixture(scope="session")
def of_pairs(finetune_base, made_once):
    """A calibrated run on pairs, of sequences of 24 of the 40 tokens.

    Some labels are wrong.
    """

    def make(folder):
        paths = {}
        for seed, split in enumerate(("train", "dev")):
            made = rows("rte", 40, seed)
            for row in made[::7]:
                row["label"] = 1 - row["label"]
            paths[split] = write_lines(folder / f"{split}.jsonl", made)
        config = custom_config(
            finetune_base,
            paths,
            custom__head="classification",
            custom__text=("sentence1", "sentence2"),
            custom__labels=("no", "yes"),
            custom__calibrate=True,
            data__max_seq_len=24,
        )
        finetune.run(config, str(folder / "run"))

    return made_once("of_pairs", make) / "run"


@pytest.fixture(scope="session")
def of_several_labels(finetune_base, made_once):
    """A run on texts with none, one or both of two labels, and one that all have."""

    def make(folder):
        paths = {}
        for seed, split in enumerate(("train", "dev")):
            made = [{"sentence": "bcd efg", "label": "all"}]
            for row in rows("sst2", 95, seed):
                own = ("bad", "good")[row["label"]]
                made.append({"sentence": row["sentence"], "label": f"all|{own}"})
            paths[split] = write_lines(folder / f"{split}.jsonl", made)
        own = {"custom__head": "multilabel", "custom__text": ("sentence",)}
        config = custom_config(finetune_base, paths, **own)
        finetune.run(config, str(folder / "run"))

    return made_once("of_several_labels", make) / "run"


@pytest.fixture
def carried_out(monkeypatch):
    """Runs that only write made-up scores; the folders in which any did, in order."""
    seen = []

    def run_one(run, setup):
        begin_run(run.folder, run.config)
        write_config_and_tokenizer(run.folder, run.config, setup.data.origin.tokenizer)
        seen.append("/".join(run.folder.parts[-2:]))
        scores = {"n": 12, "accuracy": 0.5}
        count = len(setup.data.splits["train"])
        counts = {"train_examples": count, "origin_step": 8, "best_step": 2}
        result = {**RESULTS.stamp(), "dev": scores, "majority": scores, **counts}
        result[DIGESTS] = dict(setup.data.identity(run.config).digests)
        result[FILE_DIGESTS] = dict(setup.data.file_digests)
        write_json(run.folder / "results.json", result)
        return result

    monkeypatch.setattr(finetune, "_run_one", run_one)
    return seen
