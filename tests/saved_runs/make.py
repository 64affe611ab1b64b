"""Makes the folders of `tests/saved_runs/VERSION/` with that version's program.

    python tests/saved_runs/make.py CHECKOUT tests/saved_runs/1.0.0

CHECKOUT is a clone at the commit whose folders are wanted; 1.0.0 was made with jax
0.10.2, on one CPU device. The tests check that every job accepts such folders, and that
training resumes from them. `write_data` makes up the same data each time.
"""

import csv
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SIGNS = ("aaaa", "jjjj")
WORDS = ("bcd", "efg", "hi", "cbe", "gif", "dh", "feb", "ice")

SHORT = {
    "train.num_steps": 4,
    "train.batch_size": 8,
    "eval.batch_size": 8,
    "checkpoint.every_steps": 2,
    "log.every_steps": 1,
    "log.tensorboard": False,
}
PRETRAIN = SHORT | {
    "model.num_layers": 1,
    "model.num_heads": 1,
    "model.embed_dim": 8,
    "model.mlp_dim": 32,
    "model.max_seq_len": 24,
    "tokenizer.vocab_size": 330,
    "data.source": "text",
    "data.train": "texts",
    "optimizer.warmup_steps": 1,
    "eval.every_steps": 2,
    "eval.sample_tokens": 4,
}
FINETUNE = SHORT | {
    "init_from": "pretrain",
    "data.source": "jsonl",
    "data.dir": "tasks",
    "data.seq_len_buckets": "(24,)",
    "optimizer.learning_rate": 0.03,
    "train.num_epochs": 0,
    "eval.first_epoch_steps": "()",
}
OF_PRETRAIN = {"init_from": "pretrain"}
MILESTONES = {"checkpoint.milestone_steps": "(2,4)"}
LSTM = {"model.kind": "lstm", "model.lstm_units": 16}
SUITE = {"tasks": "('sst2',)", "train.num_steps": 2, "suite.lstm_init_from": "lstm"}
TASKS = {"data.source": "jsonl", "data.dir": "tasks"}
PAIRS = {"data.files": "pairs.jsonl"}
TIMES = {"data.times": "times.csv"}
BABYLM = {
    "sets": "('full',)",
    "tasks": "('blimp_supplement',)",
    "data.dir": "evaluation_data",
}
# Folder, job, preset and flags; what another reads is made before it.
RUNS = (
    ("pretrain", "pretrain", "quickstart", PRETRAIN | MILESTONES),
    ("lstm", "pretrain", "quickstart", PRETRAIN | LSTM),
    ("finetune", "finetune", "sst2", FINETUNE),
    ("suite", "finetune", "ablations", FINETUNE | SUITE),
    ("zero_shot", "zero_shot", "sst2", OF_PRETRAIN | TASKS | {"step": "milestones"}),
    ("minimal_pairs", "minimal_pairs", "custom", OF_PRETRAIN | PAIRS),
    ("reading_times", "reading_times", "custom", OF_PRETRAIN | TIMES),
    ("babylm", "babylm", "strict-small", OF_PRETRAIN | BABYLM),
    ("exported", "convert", "huggingface", OF_PRETRAIN),
    ("converted", "convert", "run", {"init_from": "exported"}),
)
# As tests/conftest.py sets them, so that tests compute the same bits on such a machine.
AS_IN_TESTS = {
    "NPROC": "16",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false",
}


def write_data(folder: Path) -> None:
    """Texts, SST-2 with a sign of the label in each sentence, pairs and times."""
    rng = random.Random(0)

    def sentence(count: int) -> str:
        return " ".join(rng.choices(WORDS + SIGNS, k=count))

    (folder / "texts").mkdir()
    for number in range(3):
        lines = "\n".join(f"{sentence(12)}." for _ in range(30))
        (folder / "texts" / f"{number}.txt").write_text(lines)
    for split, count in (("train", 32), ("dev", 8)):
        rows = [
            {"sentence": f"{sentence(3)} {SIGNS[n % 2]}", "label": n % 2, "idx": n}
            for n in range(count)
        ]
        write_lines(folder / "tasks" / "sst2" / f"{split}.jsonl", rows)
    pairs = [
        {"sentence_good": sentence(4), "sentence_bad": sentence(4)} for _ in range(6)
    ]
    write_lines(folder / "pairs.jsonl", pairs)
    below = folder / "evaluation_data" / "full_eval" / "supplement_filtered"
    write_lines(below / "hypernym.jsonl", pairs)
    with (folder / "times.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("story", "word", "time"))
        for story in range(3):
            for word in sentence(30).split():
                writer.writerow((story, word, round(rng.uniform(200, 400))))


def write_lines(path: Path, rows: list[dict]) -> None:
    """Writes JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(checkout: str, target: str) -> None:
    """Runs the program of a checkout in a scratch folder and keeps what it wrote."""
    root = Path(target).resolve()
    environment = {**os.environ, **AS_IN_TESTS}
    environment["PYTHONPATH"] = str(Path(checkout).resolve())
    with tempfile.TemporaryDirectory() as scratch:
        environment["XDG_CACHE_HOME"] = f"{scratch}/cache"
        write_data(Path(scratch))
        for folder, job, preset, flags in RUNS:
            config = Path(checkout, "configs", f"{job}.py").resolve()
            command = [sys.executable, "-m", "gpt1_jax.main"]
            command += [f"--config={config}:{preset}", f"--workdir={folder}"]
            command += [f"--config.{key}={value}" for key, value in flags.items()]
            subprocess.run(command, cwd=scratch, env=environment, check=True)
        shutil.rmtree(root, ignore_errors=True)
        for folder, *_ in RUNS:
            shutil.copytree(Path(scratch, folder), root / folder)
    for extra in root.rglob("plots"):
        shutil.rmtree(extra)
    for name in (".lock", "commit_success.txt"):  # the last names the scratch folder
        for extra in root.rglob(name):
            extra.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
