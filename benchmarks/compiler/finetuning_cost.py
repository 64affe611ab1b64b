"""What fine-tuning on the paper's tasks takes on a chip that is not there, estimated.

    python -m benchmarks.compiler.finetuning_cost --steps=FILE,FILE \
        --tasks=FOLDER --vocabulary=FOLDER [--own_kernels=MS] [--output=FILE]

Steps are those of `configs/finetune.py:all` on the published number of examples. How
many real tokens their batches hold is counted on examples in FOLDER/TASK/train.jsonl,
in GPT-1's tokens. Two fine-tuning steps that `compiled.py` has compiled for the chip,
of short texts and of long, give the time of any other on the line through them: padding
is left out of all but attention, so that a step takes time in proportion to its real
tokens, beside what the optimizer takes.
"""

import argparse
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import harness
from benchmarks.harness import count
from benchmarks.paper_model import load_config
from gpt1_jax.config import load
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.data.gpt1_tokenizer import GPT1Tokenizer
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import MissingData
from gpt1_jax.tasks.batches import (
    TOKENS_TO_COMPILE,
    TrainBatches,
    draw_examples,
    padded_lengths,
)
from gpt1_jax.tasks.examples import load_split
from gpt1_jax.tasks.paper_tasks import select_tasks
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import encode_examples

_LONGEST = 512  # tokens that GPT-1 reads
_FORWARD = 1 / 3  # of a training step: two more for the backward pass


class Sizes(NamedTuple):
    """Examples of a task's published splits, all dev and test subsets together."""

    train: int  # with a label
    dev: int
    test: int


SIZES = {  # by the cards of the datasets that docs/finetuning.md names
    "snli": Sizes(549_367, 9_842, 10_000),
    "mnli": Sizes(392_702, 19_647, 20_747),  # with the diagnostic set
    "qnli": Sizes(104_743, 5_463, 5_463),
    "sci_tail": Sizes(23_097, 1_304, 2_126),
    "rte": Sizes(2_490, 277, 3_000),
    "race": Sizes(87_866, 4_887, 4_934),
    "story_cloze": Sizes(1_497, 374, 1_871),
    "copa": Sizes(400, 100, 500),
    "mrpc": Sizes(3_668, 408, 1_725),
    "qqp": Sizes(363_846, 40_430, 390_965),
    "stsb": Sizes(5_749, 1_500, 1_379),
    "cola": Sizes(8_551, 1_043, 1_063),
    "sst2": Sizes(67_349, 872, 1_821),
    "wnli": Sizes(635, 71, 146),
}


class Line(NamedTuple):
    """The time of a step by its real tokens."""

    seconds: float  # of no tokens: the optimizer
    per_token: float

    def __call__(self, tokens: float) -> float:
        return self.seconds + self.per_token * tokens


# --- steps that were compiled -------------------------------------------------------


def read_step(path: Path, own_kernels: float) -> tuple[int, float]:
    """The tokens and seconds of the case "finetune" in a file that `compiled.py` wrote.

    Args:
      path: the file.
      own_kernels: milliseconds of all kernels of ours for a TPU, in a step on 32 x 512
        tokens; they take time by the square of the length.
    """
    found = json.loads(path.read_text())
    seq_len, step = found["settings"]["seq_len"], found["results"]["finetune"]
    played = step["schedule"]  # files of before 29 November 2026 know no idle time
    seconds = played["kernel_seconds"] + played.get("idle_seconds", 0.0)
    own = own_kernels / 1e3 * (seq_len / _LONGEST) ** 2
    return step["batch"] * seq_len, seconds + own


def line_through(short: tuple[int, float], long: tuple[int, float]) -> Line:
    """The line through two steps, each its tokens and its seconds."""
    per_token = (long[1] - short[1]) / (long[0] - short[0])
    return Line(short[1] - per_token * short[0], per_token)


# --- steps of a task ----------------------------------------------------------------


def batch_sizes(
    task: Task,
    config: FinetuneConfig,
    tokenizer: Tokenizer,
    number: int,
    num_steps: int,
) -> list[tuple[int, int]]:
    """The padded length of each batch of an epoch, and its real tokens.

    They are rounded up as in the job. Each pair of them is a program to compile.

    Args:
      task: the task.
      config: its configuration; `data` says where examples are.
      tokenizer: the tokenizer.
      number: how many examples to count, at most.
      num_steps: of the run, which the roundings suit.
    """
    examples = draw_examples(read_examples(task, config), number)
    batches = TrainBatches[Mapping[str, Any]](
        examples=encode_examples(task, examples, tokenizer, _LONGEST),
        make_batch=dict,
        batch_size=config.train.batch_size,
        rows=slice(0, config.train.batch_size),
        seq_lens=padded_lengths(config.data, _LONGEST),
        devices=1,
        parts=1,
        unpadded_sizes=config.data.unpadded_sizes,
        tokens_to_compile=TOKENS_TO_COMPILE["gpu"],
        num_steps=num_steps,
        seed=config.seeds[0],
    )
    epoch = [batches[step] for step in range(batches.steps_per_epoch)]
    return [(each["tokens"].shape[-1], each["real_indices"].size) for each in epoch]


def read_examples(task: Task, config: FinetuneConfig) -> list[Example]:
    """Training examples; those of the dev split if there are no others."""
    read = functools.partial(
        load_split, task, source=config.data.source, directory=config.data.dir
    )
    try:
        return read("train")
    except MissingData:
        return read("dev")


def num_steps(sizes: Sizes, config: FinetuneConfig) -> int:
    """The updates of a run."""
    return int(config.train.num_epochs * (sizes.train // config.train.batch_size))


def cost(
    sizes: Sizes,
    config: FinetuneConfig,
    batches: Sequence[tuple[int, int]],
    line: Line,
) -> dict[str, float]:
    """Steps of a run on a task, and its time.

    Args:
      sizes: of the task.
      config: the configuration, of `configs/finetune.py:all`.
      batches: as `batch_sizes` gives them.
      line: the time of a step.

    Returns:
      `steps`; `programs`, the different batches to compile steps for; `tokens` and
      `step_seconds`, means of a step; `train_seconds`; and `eval_seconds`, of all
      evaluations and of the predictions for dev and test split at the end, with a third
      of a step's time for as many examples.
    """
    batch_size, steps = config.train.batch_size, num_steps(sizes, config)
    per_epoch = sizes.train // batch_size
    early = sum(step < per_epoch for step in config.eval.first_epoch_steps)
    times = early + int(config.train.num_epochs) + 1  # the last: of the best step
    evaluated = times * sizes.dev + sizes.test
    tokens = sum(real for _, real in batches) / len(batches)
    seconds = line(tokens)
    return {
        "steps": steps,
        "programs": len(set(batches)),
        "tokens": tokens,
        "step_seconds": seconds,
        "train_seconds": steps * seconds,
        "eval_seconds": evaluated / batch_size * seconds * _FORWARD,
    }


# --- the command --------------------------------------------------------------------


def table(costs: Mapping[str, Mapping[str, float]]) -> str:
    """A line for each task, and their sum."""
    header = (
        "task",
        "steps",
        "programs",
        "tokens",
        "ms a step",
        "training, min",
        "evaluation, min",
    )
    rows = [
        (
            name,
            f"{each['steps']:,}",
            f"{each['programs']}",
            f"{each['tokens']:,.0f}",
            f"{each['step_seconds'] * 1e3:.1f}",
            f"{each['train_seconds'] / 60:.1f}",
            f"{each['eval_seconds'] / 60:.1f}",
        )
        for name, each in costs.items()
    ]
    steps, programs, *seconds = (
        sum(each[key] for each in costs.values())
        for key in ("steps", "programs", "train_seconds", "eval_seconds")
    )
    minutes = (f"{each / 60:.0f}" for each in seconds)
    total = ("all", f"{steps:,}", f"{programs}", "", "", *minutes)
    return harness.markdown(header, [*rows, total])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    text = "two files of compiled.py with the case finetune, short texts first"
    parser.add_argument("--steps", required=True, help=text)
    text = "ms that all kernels of ours for a TPU take in a step on 32 x 512 tokens"
    parser.add_argument("--own_kernels", type=float, default=0.0, help=text)
    text = "folder of TASK/train.jsonl, with the columns of TFDS"
    parser.add_argument("--tasks", type=Path, required=True, help=text)
    text = "folder of OpenAI's encoder_bpe_40000.json and vocab_40000.bpe"
    parser.add_argument("--vocabulary", type=Path, required=True, help=text)
    text = "examples of each task to count the tokens of"
    parser.add_argument("--examples", type=count, default=3000, help=text)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Counts tokens, prints the table and writes the JSON file."""
    flags = parse(arguments)
    files = [Path(name) for name in flags.steps.split(",")]
    line = line_through(*(read_step(path, flags.own_kernels) for path in files))
    values = load_config("finetune", "all")
    values.init_from = "openai-gpt"  # not read
    values.data.update(source="jsonl", dir=str(flags.tasks))
    config: FinetuneConfig = load(values.to_dict())
    names = ("encoder_bpe_40000.json", "vocab_40000.bpe")
    texts = ((flags.vocabulary / name).read_text() for name in names)
    tokenizer = GPT1Tokenizer(*texts)
    record = harness.describe("compiler.finetuning_cost", arguments)
    costs = {}
    for task in select_tasks(config)[0]:
        sizes = SIZES[task.name]
        steps = num_steps(sizes, config)
        batches = batch_sizes(task, config, tokenizer, flags.examples, steps)
        costs[task.name] = cost(sizes, config, batches, line)
    if flags.output:
        results = {"line": line._asdict(), "costs": costs}
        harness.write_json(flags.output, record, flags, results)
    print(table(costs))


if __name__ == "__main__":
    main(sys.argv[1:])
