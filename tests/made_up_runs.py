"""Run folders with made-up contents, as a report reads them."""

import dataclasses
import functools
import json

from etils import epath
from tiny_run import load_config
from tiny_tasks import finetune_config

from gpt1_jax.config.sections import ModelSection
from gpt1_jax.finetuning.results import Finished
from gpt1_jax.formats import RESULTS, RUN_FOLDER
from gpt1_jax.runs.resume import digests_record
from gpt1_jax.runs.wall_time import TRAINING
from gpt1_jax.studies.zero_shot.scores import relative_score
from gpt1_jax.studies.zero_shot.tasks import ZERO_SHOT

SIZES = {
    "kind": "transformer",
    "lstm_units": 680,
    "num_layers": 4,
    "num_heads": 4,
    "embed_dim": 64,
    "mlp_dim": 256,
    "max_seq_len": 128,
}
SESSION = {
    "began": "2026-11-23T01:00:00+00:00",
    "first_step": 0,
    "last_step": 8,
    "devices": "8 x TPU v5e",
    "processes": 2,
    "host": "Linux x86_64, 112 cores",
    "versions": {"gpt1_jax": "1.0.0", "jax": "0.10.2"},
    "text": {"tokens": 4096, "words": 3000},
    "seconds": {TRAINING: 90.0, "evaluation": 20.0, "the rest": 10.0},
}
RECORDS = (
    {"step": 4, "loss": 6.5, "tokens_per_second": 100.0, "mfu": 0.4},
    {"step": 4, "valid_loss": 6.25, "sample": "first"},
    {"step": 8, "loss": 5.5, "tokens_per_second": 300.0, "mfu": 0.5},
    {
        "step": 8,
        "valid_loss": 5.125,
        "valid_perplexity": 168.17,
        "valid_bits_per_word": 10.5,
        "sample": "it was a\nsecond line",
    },
)
OWN_TASK = {
    "custom__head": "classification",
    "custom__text": ("a",),
    "custom__labels": ("x", "y"),
}


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_pretrained(
    folder, records=RECORDS, sessions=(SESSION,), saved=(8,), **overrides
):
    """A pre-trained run of 8 steps of 1,024 tokens; what is saved holds no arrays."""
    short = {"train.num_steps": 8, "optimizer.warmup_steps": 2}
    config = load_config("quickstart", **short)
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    config.update_from_flattened_dict(named)
    write_json(folder / "config.json", {**RUN_FOLDER.stamp(), **config.to_dict()})
    write_json(folder / "tokenizer" / "tokenizer.json", {"vocab_size": 500})
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(lines)
    for step in saved:
        write_json(folder / "checkpoints" / str(step) / "manifest.json", {})
    if sessions:
        write_json(folder / "sessions.json", {"sessions": list(sessions)})
    return folder


def finished_result(task, score, **more):
    """A results.json with one score for every metric there is."""
    metrics = ("accuracy", "matthews", "f1", "pearson", "spearman")
    scores = {"n": 40, **dict.fromkeys(metrics, score)}
    return {
        **RESULTS.stamp(),
        "task": task,
        "origin_step": 8,
        "best_step": 12,
        "train_examples": 64,
        "majority": {**scores, **dict.fromkeys(metrics, 0.5)},
        "dev": scores,
        **digests_record({}),
        **more,
    }


@functools.cache
def _configured(task, **overrides):
    return finetune_config(task, {"init_from": "runs/pretrain"}, **overrides)


def finished_run(task, result, kind="transformer", **overrides):
    """A finished run of a model of two layers; of its folder there is only the name."""
    config = _configured(task, **overrides)
    sizes = {**SIZES, "num_layers": 2, "kind": kind}
    model = ModelSection(**vars(config.model), **sizes)
    return Finished(epath.Path("run"), dataclasses.replace(config, model=model), result)


def write_finished(
    folder,
    task="sst2",
    score=0.75,
    seed=0,
    result=None,
    preset=None,
    sizes=SIZES,
    **overrides,
):
    """A finished fine-tuned run, on its own or one of a preset with several."""
    own = OWN_TASK if task == "custom" else {}
    given = {"init_from": "runs/pretrain/small", "seeds": (seed,), **own, **overrides}
    config = load_config(task, file="finetune", **given).to_dict()
    config["model"] |= sizes
    config["preset"] = preset or config["preset"]
    write_json(folder / "config.json", {**RUN_FOLDER.stamp(), **config})
    write_json(folder / "results.json", result or finished_result(task, score))
    return folder


def zero_shot_scores(task, score):
    """Scores on a task as the zero-shot job writes them."""
    scores = {"split": "dev", "n": 40, "standard_error": 0.01}
    scores[ZERO_SHOT[task].task.metrics[0]] = score
    return {**scores, **relative_score(task, scores)}


def write_zero_shot(folder, scores=(0.5, 0.75), **more):
    """A zero-shot evaluation on SST-2 at one step or more."""
    config = load_config("sst2", file="zero_shot", init_from="runs/pretrain/small")
    checkpoints = [
        {"step": 1000 * (i + 1), "tasks": {"sst2": zero_shot_scores("sst2", score)}}
        for i, score in enumerate(scores)
    ]
    run = {"init_from": "runs/pretrain/small", "kind": "transformer"}
    result = {
        **RESULTS.stamp(),
        "config": config.to_dict(),
        "versions": {"jax": "0.10.2"},
        "runs": [{**run, "checkpoints": checkpoints}],
        **more,
    }
    write_json(folder / "results.json", result)
    return folder


def write_one_of_each(folder):
    """A pre-trained run, a fine-tuned one and an evaluation of the first."""
    write_pretrained(folder / "pretrain" / "small")
    write_finished(folder / "finetune" / "sst2")
    write_zero_shot(folder / "zero_shot")
    return folder
