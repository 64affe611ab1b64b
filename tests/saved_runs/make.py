"""Makes the run folders of `tests/saved_runs/VERSION/` with that version's program.

    python tests/saved_runs/make.py CHECKOUT tests/saved_runs/0.1.0

CHECKOUT is a clone at the commit whose folders are wanted, all of them made with jax
0.10.2. 0.1.0 is the last commit before the rooms were rearranged; 2026-11-24 is
9c9a055, the last one before keys and steps got the words they have today. The tests
check that such folders still open: to resume, to start from, to predict with, to
report. Texts are made-up words; their times are fixed, since 0.1.0 knew a corpus by the
names, sizes and times of its files.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MTIME = 1_700_000_000
SIGNS = ("aaaa", "jjjj")
WORDS = ("bcd", "efg", "hi", "cbe", "gif", "dh", "feb", "ice")

PRETRAIN = {
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.embed_dim": 16,
    "model.mlp_dim": 32,
    "model.max_seq_len": 24,
    "tokenizer.vocab_size": 60,
    "data.source": "text",
    "data.train": "texts",
    "train.num_steps": 8,
    "train.batch_size": 8,
    "optimizer.warmup_steps": 2,
    "eval.every_steps": 4,
    "eval.batch_size": 8,
    "eval.sample_tokens": 4,
    "checkpoint.every_steps": 4,
    "log.every_steps": 2,
}
# Byte-level pairs, whose tokenizer holds every byte.
PRETRAIN_BYTES = {**PRETRAIN, "tokenizer.vocab_size": 340, "model.mlp_dim": 64}
FINETUNE = {
    "init_from": "pretrain",
    "data.source": "jsonl",
    "data.dir": "tasks",
    "data.seq_len_buckets": "(24,)",
    "optimizer.learning_rate": 0.03,
    "train.batch_size": 8,
    "train.num_steps": 4,
    "train.num_epochs": 0,
    "eval.batch_size": 8,
    "eval.first_epoch_steps": "()",
    "checkpoint.every_steps": 2,
    "log.every_steps": 1,
    "log.tensorboard": False,
}


def write_texts(folder: Path) -> None:
    """Three files of made-up sentences."""
    rng = random.Random(0)
    folder.mkdir()
    for number in range(3):
        lines = (" ".join(rng.choices(WORDS + SIGNS, k=12)) + "." for _ in range(30))
        path = folder / f"{number}.txt"
        path.write_text("\n".join(lines))
        os.utime(path, (MTIME, MTIME))


def write_task(folder: Path) -> None:
    """SST-2 with a sign of the label in each sentence."""
    rng = random.Random(1)
    folder.mkdir(parents=True)
    for split, count in (("train", 32), ("dev", 8)):
        rows = []
        for index in range(count):
            words = [*rng.choices(WORDS, k=3), SIGNS[index % 2]]
            row = {"sentence": " ".join(words), "label": index % 2, "idx": index}
            rows.append(json.dumps(row))
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")


# The runs of each version, in the order they are made: folder, job, preset and flags.
# What a suite or a conversion reads is made before it.
RUNS = {
    "0.1.0": (
        ("pretrain", "pretrain", "quickstart", PRETRAIN),
        ("finetune", "finetune", "sst2", FINETUNE),
    ),
    "2026-11-24": (
        (
            "pretrain",
            "pretrain",
            "quickstart",
            {
                **PRETRAIN_BYTES,
                "checkpoint.keep_at_steps": "2:6:+4",
            },
        ),
        (
            "lstm",
            "pretrain",
            "quickstart",
            {
                **PRETRAIN_BYTES,
                "model.kind": "lstm",
                "model.lstm_units": 16,
                "checkpoint.keep_at_words": "100:500:+400",
            },
        ),
        (
            "continued",
            "pretrain",
            "quickstart",
            {
                **PRETRAIN_BYTES,
                "init_from": "pretrain",
                "init_step": 6,
                "train.num_steps": 4,
                "checkpoint.every_steps": 2,
            },
        ),
        ("finetune", "finetune", "sst2", {**FINETUNE, "init_step": "best"}),
        (
            "suite",
            "finetune",
            "ablations",
            {
                **FINETUNE,
                "tasks": "('sst2',)",
                "train.num_steps": 2,
                "suite.lstm_init_from": "lstm",
            },
        ),
        (
            "zero_shot",
            "zero_shot",
            "sst2",
            {
                "init_from": "pretrain",
                "step": "kept",
                "data.source": "jsonl",
                "data.dir": "tasks",
            },
        ),
        ("exported", "convert", "huggingface", {"init_from": "pretrain"}),
        ("converted", "convert", "run", {"init_from": "exported"}),
    ),
}


def main(checkout: str, target: str) -> None:
    """Runs the program of a checkout in a scratch folder and keeps what it wrote."""
    root = Path(target).resolve()
    environment = {**os.environ, "PYTHONPATH": str(Path(checkout).resolve())}
    with tempfile.TemporaryDirectory() as scratch:
        environment["XDG_CACHE_HOME"] = f"{scratch}/cache"
        write_texts(Path(scratch, "texts"))
        write_task(Path(scratch, "tasks", "sst2"))
        for folder, job, preset, flags in RUNS[root.name]:
            config = Path(checkout, "configs", f"{job}.py").resolve()
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "gpt1_jax.main",
                    f"--config={config}:{preset}",
                    f"--workdir={folder}",
                    *(f"--config.{key}={value}" for key, value in flags.items()),
                ],
                cwd=scratch,
                env=environment,
                check=True,
            )
        shutil.rmtree(root, ignore_errors=True)
        folders = [folder for folder, *_ in RUNS[root.name]]
        for name in (*folders, "texts", "tasks"):
            if name == "exported":  # only read by the conversion
                continue
            shutil.copytree(Path(scratch, name), root / name)
    for extra in (*root.rglob("plots"), *root.rglob("tensorboard")):
        shutil.rmtree(extra)
    for extra in root.rglob("commit_success.txt"):  # names the scratch folder
        extra.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
