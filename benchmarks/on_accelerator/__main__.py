"""All that is worth measuring on an accelerator, in the time that one is at hand.

    python -m benchmarks.on_accelerator --output=DIR --minutes=8
        [--texts=books/train] [--valid=books/valid] [--tasks=DIR]
        [--only=probe,step] [--toy]

  fused     the forms that a run chooses ("auto"), whether our own kernels are right,
            their times: fused_kernels
  step      the pre-training step against PyTorch: peers.train_step
  kernels   where the time of the step goes, kernel by kernel: top_kernels
  finetune  fine-tuning steps on 512 tokens against transformers: peers.finetune_step
  generate  generation against transformers: peers.generate
  peers     the pre-training step against other forms of PyTorch's
  pretrain  the paper's model on --texts, for as many steps as there is time
  resume    a run and its resumption from a checkpoint, bit for bit: resumption
  probe     versions, rates of copies and products, whether results are the CPU's
  choices   the step with one thing changed: dropout, kernels, layer loop
  parts     attention, loss, dense products, dropout, optimizer alone: peers.pieces
  suite     tasks of --tasks, fine-tuned from that model and from scratch
  plans     our attention kernels with other tiles: fused_kernels
  tuned     PyTorch's step with products that it chooses by trying, for minutes

The measurements run in this order, the most valuable first, each in a process and with
a time limit of its own. Eight minutes always have room for the first five, and on an
H200 probably for `peers`. `DIR/NAME.json` has the results of one, `DIR/NAME.log` what
it printed; both are written while it runs, after each turn of each variant. As soon as
it ends, however it ends, `DIR/results.jsonl` gets a line. So little is lost if the
machine goes away. The same command continues with the measurements that are not done,
each from its beginning, and keeps a copy of what was there as `DIR/NAME.1.json`. If
this process ends, so does the measurement.

Nothing is compiled while something is measured, because compilers for GPUs choose by
timing. But what one measurement has compiled is there for all others, in
`DIR/programs`; of a repeated one, the time to the first step tells nothing. Nothing is
fetched. `--toy` rehearses all of it in minutes on a CPU, with a tiny model.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import (
    PROGRAMS,
    add_record,
    ending_with_parent,
    nvidia_gpus,
    read_records,
    some_of,
)

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "results.jsonl"
GRACE_SECONDS = 30  # to save a checkpoint once a measurement is told to end
_USUAL_MINUTES = 8  # that a machine is lent for
LEAST_SECONDS = 20  # with less left, no measurement is started
_LEAST_TRAINING = 150  # seconds; with less left, `pretrain` is not started
_OF_TRAINING = 0.75  # share of the time of `pretrain`; the rest compiles, evaluates

_TOY = ("--layers=1", "--embed_dim=64", "--seq_len=32", "--vocab_size=512")
_SMALL_MODEL = {  # of the jobs
    "model.num_layers": 1,
    "model.num_heads": 1,
    "model.embed_dim": 64,
    "model.mlp_dim": 256,
    "model.max_seq_len": 64,
    "tokenizer.vocab_size": 512,
    "train.batch_size": 8,
}


class LeftOut(Exception):
    """Why a measurement cannot run."""


Command = Callable[[argparse.Namespace, float], list[str]]  # of the seconds it has


class Measurement(NamedTuple):
    """One of the measurements, a command with a time limit."""

    seconds: float  # the most that it may take of eight minutes; of more, in proportion
    command: Command


def script(name: str, paper: Sequence[str] = (), toy: Sequence[str] = ()) -> Command:
    """The command of a script of `benchmarks`, at the paper's size or a toy's."""

    def command(flags: argparse.Namespace, seconds: float) -> list[str]:
        del seconds
        module = f"benchmarks.{name}"
        return [sys.executable, "-m", module, *(toy if flags.toy else paper)]

    return command


def resume(flags: argparse.Namespace, seconds: float) -> list[str]:
    """The quickstart's model on --texts, or on the documentation installed here."""
    command = script("experiments.resumption")(flags, seconds)
    return [*command, *([f"--texts={flags.texts}"] if flags.texts else [])]


def kernels(flags: argparse.Namespace, seconds: float) -> list[str]:
    """Keeps the trace, too, in place of an earlier one."""
    command = script("on_accelerator.top_kernels", ("--batch=64",), _TOY)
    trace = flags.output / "trace"
    shutil.rmtree(trace, ignore_errors=True)
    return [*command(flags, seconds), f"--trace={trace}"]


def pretrain(flags: argparse.Namespace, seconds: float) -> list[str]:
    """Trains for as many updates as there is time for at the rate of `step`."""
    if not flags.texts:
        raise LeftOut("it needs --texts")
    if seconds < _LEAST_TRAINING and not flags.toy:
        raise LeftOut(f"it needs {_LEAST_TRAINING} seconds")
    num_steps, begun = 20, flags.output / "pretrain" / "config.json"
    if begun.exists():  # it goes on as it began
        num_steps = json.loads(begun.read_text())["train"]["num_steps"]
    elif not flags.toy:
        ours = measured(flags, "step").get("jax_bf16")
        if ours is None:
            raise LeftOut("it needs the time of a step with jax_bf16, which failed")
        num_steps = int(seconds * _OF_TRAINING / ours["median_seconds"])
    values = {
        "data.source": "text",
        "data.train": flags.texts,
        "data.valid": flags.valid,
        "train.num_epochs": 0,
        "train.num_steps": num_steps,
        "optimizer.warmup_steps": min(2000, num_steps // 10),
        "eval.every_steps": max(1, num_steps // 8),
        "eval.max_batches": 16,
        "checkpoint.every_steps": max(1, num_steps // 2),
    }
    values.update(_SMALL_MODEL if flags.toy else {})
    return job("pretrain.py:paper_h200", flags.output / "pretrain", values)


def suite(flags: argparse.Namespace, seconds: float) -> list[str]:
    """Fine-tunes two seeds on a part of some tasks, with pre-training and without."""
    del seconds
    origin = flags.output / "pretrain"
    if not flags.tasks:
        raise LeftOut("it needs --tasks")
    if not (origin / "checkpoints").exists():
        raise LeftOut("it needs the model of pretrain")
    values = {
        "init_from": origin,
        "seeds": "0" if flags.toy else "0,1",
        "data.source": "jsonl",
        "data.dir": flags.tasks,
        "data.max_train_examples": 16 if flags.toy else 4000,
        "data.max_dev_examples": 16 if flags.toy else 1000,
        "train.batch_size": 8 if flags.toy else 32,
        "model.dtype": "bfloat16",
        "suite.compare": "scratch",
    }
    tasks = "sst2" if flags.toy else "sst2+cola+rte+mrpc+stsb+mnli"
    return job(f"finetune.py:{tasks}", flags.output / "suite", values)


def job(config: str, workdir: Path, values: Mapping[str, Any]) -> list[str]:
    """The command of a job with these values in its configuration."""
    return [
        *(sys.executable, "-m", "gpt1_jax.main"),
        f"--config={ROOT / 'configs' / config}",
        f"--workdir={workdir}",
        f"--config.train.compilation_cache_dir={workdir.parent / 'programs' / 'jax'}",
        *(f"--config.{name}={value}" for name, value in values.items()),
    ]


def measured(flags: argparse.Namespace, name: str) -> Mapping[str, Any]:
    """The results of an earlier measurement."""
    path = flags.output / f"{name}.json"
    if not path.exists():
        raise LeftOut(f"it needs the results of {name}")
    return json.loads(path.read_text())["results"]


_STEP = "--variants=jax_bf16,torch_sdpa_bf16_compiled"
_PEERS = "--variants=jax_bf16,torch_flash_bf16_compiled,torch_sdpa_bf16_graphs,"
_PEERS += "hf_bf16_compiled"
_TUNED = "--variants=jax_bf16,torch_sdpa_bf16_tuned"
_FINETUNE = ("--whole", "--distinct=1", "--variants=jax_bf16,hf_bf16,hf_bf16_compiled")
_GENERATE = "--variants=jax_bf16,gpt2_bf16,openai_gpt_bf16"
_CHOICES = "--variants=" + ",".join(
    f"jax_bf16{changed}"
    for changed in ("", "_no_dropout", "_blocked", "_fused_attention", "_scan")
)
_ONCE = ("--steps=1", "--rounds=1")
_ONE_CALL = ("--calls=1", "--rounds=1")
_TOY_KERNELS = ("--toy", "--batch=1", "--seq_len=70", "--embed_dim=64", *_ONE_CALL)
_SMALL_PROBE = ("--size=256", "--tokens=64", "--megabytes=8")
_SHORT_STEPS = ("--batch=64", "--steps=20", "--rounds=2")
MEASUREMENTS = {
    "fused": Measurement(
        85,
        script(
            "on_accelerator.fused_kernels",
            ("--batch=64", "--parts=checks,times"),
            ("--parts=checks,times", *_TOY_KERNELS),
        ),
    ),
    "step": Measurement(
        150,
        script(
            "peers.train_step",
            ("--batch=64", "--steps=30", "--rounds=3", _STEP),
            (*_TOY, *_ONCE, _STEP),
        ),
    ),
    "kernels": Measurement(45, kernels),
    "finetune": Measurement(
        110,
        script(
            "peers.finetune_step",
            ("--batch=32", "--steps=20", "--rounds=2", *_FINETUNE),
            (*_TOY, *_ONCE, "--batch=4", *_FINETUNE),
        ),
    ),
    "generate": Measurement(
        85,
        script(
            "peers.generate",
            ("--batch=8", _GENERATE),
            (*_TOY, "--prompt_tokens=4", "--new_tokens=9", "--rounds=1", _GENERATE),
        ),
    ),
    "peers": Measurement(
        180,
        script("peers.train_step", (*_SHORT_STEPS, _PEERS), (*_TOY, *_ONCE, _PEERS)),
    ),
    "pretrain": Measurement(550, pretrain),
    "resume": Measurement(150, resume),
    "probe": Measurement(150, script("on_accelerator.probe", toy=_SMALL_PROBE)),
    "choices": Measurement(
        400,
        script(
            "peers.train_step", (*_SHORT_STEPS, _CHOICES), (*_TOY, *_ONCE, _CHOICES)
        ),
    ),
    "parts": Measurement(
        250,
        script(
            "peers.pieces",
            ("--batch=64", "--dtype=bfloat16", "--calls=20"),
            (*_TOY, "--dtype=bfloat16", *_ONE_CALL),
        ),
    ),
    "suite": Measurement(550, suite),
    "plans": Measurement(
        200,
        script(
            "on_accelerator.fused_kernels",
            ("--batch=64", "--parts=plans"),
            ("--parts=plans", *_TOY_KERNELS),
        ),
    ),
    "tuned": Measurement(
        500,
        script("peers.train_step", (*_SHORT_STEPS, _TUNED), (*_TOY, *_ONCE, _STEP)),
    ),
}
_WITH_RESULTS = set(MEASUREMENTS) - {"pretrain", "suite"}  # which take --output


def run(names: Sequence[str], flags: argparse.Namespace) -> None:
    """Runs the measurements that are not done yet, until the time is up."""
    end = time.monotonic() + 60 * flags.minutes
    share = max(1.0, flags.minutes / _USUAL_MINUTES)
    flags.output.mkdir(parents=True, exist_ok=True)
    os.environ[PROGRAMS] = str(flags.output / "programs")
    if nvidia_gpus():  # then JAX says what keeps it from them, and takes no CPU
        os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu")
    done = {name for name, status in statuses(flags).items() if status == "done"}
    for name in names:
        left = end - time.monotonic()
        if name in done:
            print(f"{name}: done before", flush=True)
        elif left < LEAST_SECONDS:
            print(f"{name}: no time left", flush=True)
        else:
            most = share * MEASUREMENTS[name].seconds
            result = run_one(name, min(left, most), flags)
            add_record(flags.output / RESULTS, result)


def statuses(flags: argparse.Namespace) -> dict[str, str]:
    """How each measurement ended, in all calls so far."""
    return {
        record["measurement"]: record["status"]
        for record in read_records(flags.output / RESULTS)
        if {"measurement", "status"} <= set(record)
    }


def run_one(name: str, seconds: float, flags: argparse.Namespace) -> dict[str, Any]:
    """Runs one measurement in its process, and says how it ended."""
    if name not in _WITH_RESULTS:  # a job, which saves a checkpoint
        seconds -= min(GRACE_SECONDS, seconds / 4)
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result: dict[str, Any] = {"measurement": name, "date": date}
    try:
        command = MEASUREMENTS[name].command(flags, seconds)
    except LeftOut as why:
        print(f"{name}: left out, {why}", flush=True)
        return {**result, "status": "left out", "why": str(why)}
    if name in _WITH_RESULTS:
        command.append(f"--output={keep_older(flags.output / f'{name}.json')}")
    log, start = flags.output / f"{name}.log", time.monotonic()
    with log.open("a") as output:
        status = wait(command, output, seconds)
    taken = time.monotonic() - start
    print(f"\n=== {name}: {status}, {taken:.0f} s\n{tail(log)}", flush=True)
    return {**result, "status": status, "seconds": round(taken, 1), "command": command}


def keep_older(path: Path) -> Path:
    """Copies a file that is there to NAME.1.json or the next that is free."""
    copies = (path.with_suffix(f".{number}.json") for number in itertools.count(1))
    if path.exists():
        shutil.copy2(path, next(copy for copy in copies if not copy.exists()))
    return path


def wait(command: Sequence[str], output: Any, seconds: float) -> str:
    """Runs a command for some seconds; "done", "failed (CODE)" or "out of time"."""
    process = subprocess.Popen(
        ending_with_parent(command),
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_search_path())},
        process_group=0,  # so that its own processes end with it
    )
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what is left of them
        process.wait()
        return "out of time"
    return "done" if code == 0 else f"failed ({code})"


def _search_path() -> list[str]:
    return [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]


def tail(log: Path, lines: int = 25) -> str:
    """The end of what a measurement printed."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of results")
    parser.add_argument("--minutes", type=float, required=True, help="for all of it")
    names = some_of(MEASUREMENTS)
    parser.add_argument(
        "--only", type=names, default=list(MEASUREMENTS), help="comma list"
    )
    parser.add_argument("--texts", help="to pre-train on, as in config.data.train")
    parser.add_argument("--valid", default="", help="as in config.data.valid")
    parser.add_argument("--tasks", help="folder of TASK/train.jsonl and dev.jsonl")
    parser.add_argument("--toy", action="store_true", help="a tiny model, few steps")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Runs the measurements; exits 1 if one of them failed."""
    flags = parse(arguments)
    flags.output = flags.output.resolve()
    run(flags.only, flags)
    last = statuses(flags)
    print("\n" + "\n".join(f"{name}: {status}" for name, status in last.items()))
    if any(status.startswith("failed") for status in last.values()):
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
