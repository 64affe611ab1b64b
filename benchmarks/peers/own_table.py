"""A table of one's own, from file to labels: this package beside transformers' Trainer.

    python -m benchmarks.peers.own_table RUN SST2 [--rows=2000] [--seeds=0,1,2]

RUN is a pre-trained run folder, and SST2 a folder with `train.jsonl` and `dev.jsonl` of
GLUE's SST-2. Of these it makes an imbalanced table with the columns `text` and `label`:
in `train.csv` one row of ten is negative, and in `test.csv`, which is made of
`dev.jsonl`. Both train three epochs with class weights in float32, from the same
parameters, hold out a tenth of `train.csv`, keep the epoch with the best macro F1 on
it, and write the labels of `test.csv`. Ours is run with and without the auxiliary
objective, which the Trainer (`benchmarks/peers/trainer.py`) lacks.

Seconds are those of whole commands, imports and compilation included; they take turns.
Lines are those of code that a user writes. The score is the macro F1 of the labels.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import count

_LABELS = ("negative", "positive")
_ONE_OF = 10  # rows is negative
_MODULE = (sys.executable, "-m")
_OURS = {"ours": 0.0, "ours, with the auxiliary objective": 0.5}  # by its weight
_PEER = "transformers' Trainer"


def make_table(sst2: Path, rows: int, folder: Path) -> None:
    """Writes `train.csv` with this number of rows, and `test.csv`.

    Args:
      sst2: the folder with the files of SST-2.
      rows: of `train.csv`; a tenth of them is negative.
      folder: where to write.
    """
    import pandas as pd

    for name, split in (("train", "train"), ("test", "dev")):
        table = pd.read_json(sst2 / f"{split}.jsonl", lines=True)
        table = table.drop_duplicates("sentence").sample(frac=1, random_state=0)
        positive, negative = (table[table["label"] == number] for number in (1, 0))
        number = rows if name == "train" else len(positive) * _ONE_OF // (_ONE_OF - 1)
        parts = [negative[: number // _ONE_OF], positive[: number - number // _ONE_OF]]
        made = pd.concat(parts).sample(frac=1, random_state=0)
        labels = made["label"].map(dict(enumerate(_LABELS)))
        made = pd.DataFrame({"text": made["sentence"].str.strip(), "label": labels})
        made.to_csv(folder / f"{name}.csv", index=False)


def our_commands(
    flags: argparse.Namespace, tables: Path, folder: Path, seed: int, weight: float
) -> list[list[str]]:
    """The two commands of this package: train, and label the test rows."""
    program = [*_MODULE, "gpt1_jax.main"]
    train = {
        "init_from": flags.run,
        "custom.head": "classification",
        "custom.text": "text",
        "custom.label": "label",
        "custom.class_weights": "balanced",
        "custom.metrics": "macro_f1",
        "data.train": tables / "train.csv",
        "data.dev_fraction": 0.1,
        "head.aux_lm_weight": weight,
        "optimizer.learning_rate": flags.rate,
        "model.dtype": "float32",
        "seeds": seed,
    }
    predict = {
        "init_from": folder / "run",
        "input": tables / "test.csv",
        "output": folder / "labels.csv",
    }
    return [
        [
            *program,
            f"--config={job}",
            *([f"--workdir={folder / 'run'}"] if values is train else []),
            *(f"--config.{key}={value}" for key, value in values.items()),
        ]
        for job, values in (
            ("configs/finetune.py:custom", train),
            ("configs/predict.py", predict),
        )
    ]


def peer_commands(
    flags: argparse.Namespace, tables: Path, folder: Path, seed: int, model: Path
) -> list[list[str]]:
    """The command of the Trainer's script, on the exported model."""
    files = map(str, (model, tables / "train.csv", tables / "test.csv", folder))
    options = [f"--rate={flags.rate}", f"--seed={seed}"]
    return [[*_MODULE, "benchmarks.peers.trainer", *files, *options]]


def do(commands: Sequence[Sequence[str]], folder: Path) -> dict[str, float]:
    """Runs commands one after another; their seconds, and the score of their labels."""
    import pandas as pd
    from sklearn.metrics import f1_score

    folder.mkdir(parents=True)
    begun = time.perf_counter()
    for command in commands:
        with (folder / "log.txt").open("a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)
    seconds = time.perf_counter() - begun
    table = pd.read_csv(folder / "labels.csv")
    labels = table["label"], table["prediction"]
    each = f1_score(*labels, labels=_LABELS, average=None, zero_division=0)
    return {"seconds": seconds, "macro_f1": each.mean(), "f1_of_negative": each[0]}


def code_lines(commands: Sequence[Sequence[str]]) -> int:
    """Lines that a user writes: a script's code, or a command with a line a flag."""
    if "benchmarks.peers.trainer" not in commands[0]:
        return sum(len(command) - len(_MODULE) for command in commands)
    script = Path(__file__).with_name("trainer.py").read_text()
    _, _, code = script.split('"""', 2)  # behind its docstring
    return sum(map(bool, code.splitlines()))


def table(results: Mapping[str, Any]) -> str:
    """One line for each variant: medians over seeds, and their range."""
    header = ["variant", "lines", "seconds", "macro F1 x 100", "F1 of negative x 100"]
    rows = []
    for name, result in results.items():
        cells = [name, str(result["lines"]), f"{result['median_seconds']:.0f}"]
        for key in ("macro_f1", "f1_of_negative"):
            points = [100 * value for value in result[key]]
            low, high = min(points), max(points)
            cells.append(f"{statistics.median(points):.1f} ({low:.1f} to {high:.1f})")
        rows.append(cells)
    return harness.markdown(header, rows)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a pre-trained run folder")
    parser.add_argument("sst2", type=Path, help="a folder with the files of SST-2")
    parser.add_argument("--rows", type=count, default=2000, help="of train.csv")
    parser.add_argument("--rate", type=float, default=6e-4, help="the learning rate")
    parser.add_argument("--seeds", default="0,1,2", help="comma list; a turn for each")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Trains each variant with each seed, prints the table, writes the JSON file."""
    flags = parse(arguments)
    record = harness.describe("peers.own_table", arguments)
    harness.use_first_gpu()
    names = [*_OURS]
    if not harness.missing_packages(["torch", "transformers", "accelerate"]):
        names.append(_PEER)
    measured = ("seconds", "macro_f1", "f1_of_negative")
    results: dict[str, Any] = {name: {key: [] for key in measured} for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        make_table(flags.sst2, flags.rows, top)
        exported = top / "exported"
        convert = ["gpt1_jax.main", "--config=configs/convert.py:huggingface"]
        convert += [f"--config.init_from={flags.run}", f"--workdir={exported}"]
        subprocess.run([*_MODULE, *convert], check=True, stdout=subprocess.DEVNULL)
        for seed in flags.seeds.split(","):
            for number, name in enumerate(names):
                folder = top / f"{number}-{seed}"
                if name == _PEER:
                    commands = peer_commands(flags, top, folder, seed, exported)
                else:
                    commands = our_commands(flags, top, folder, seed, _OURS[name])
                results[name]["lines"] = code_lines(commands)
                found = do(commands, folder)
                for key, value in found.items():
                    results[name][key].append(value)
                print(f"{name}, seed {seed}: {found}", file=sys.stderr)
    harness.compare(results, lambda name: name == _PEER)
    print(table(results))
    harness.finish(record, flags, names, results, doubts=())


if __name__ == "__main__":
    main(sys.argv[1:])
