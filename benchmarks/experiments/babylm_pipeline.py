"""Whether BabyLM's own evaluation computes the same for an exported model as we do.

    python -m benchmarks.experiments.babylm_pipeline RUN EXPORTED --step=5000
        --pipeline=babylm-eval/strict --blimp=blimp/data [--paradigms=10]
        [--pairs=300] [--words=100] [--output=FILE]

RUN is a run folder and EXPORTED the same step of it, as `convert --config.step=
milestones` writes it (`chck_10M`). The pipeline (babylm-org/babylm-eval) is run as it
is; its packages are torch, transformers, datasets, pandas and statsmodels.

BLiMP is read from its files. EWoK, COMPS, entity tracking, WUG, reading times and age
of acquisition get made-up rows of their formats, cut from BLiMP's sentences. All of
them are scored twice: by the pipeline's functions, and by gpt1_jax from the run folder
with a newline before each text.
"""

import argparse
import dataclasses
import importlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import gpt1_jax
from benchmarks import harness
from benchmarks.harness import count
from gpt1_jax.data.words import ReadingWindow, encode_line
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.trained_model import TrainedModel

Rows = list[dict[str, Any]]


class Compared(NamedTuple):
    """The scores of one task, theirs and ours: [N] nats, and [N] choices."""

    items: int
    largest: float  # difference of a score, nats
    differ: int  # items of which another option is chosen
    tied: int  # items whose best options have the same score here


# --- rows -------------------------------------------------------------------------


def read_blimp(folder: Path, paradigms: int, pairs: int) -> dict[str, Rows]:
    """The first pairs of evenly spread paradigms."""
    files = sorted(folder.glob("*.jsonl"))
    files = files[:: max(1, len(files) // paradigms)][:paradigms]
    return {
        file.name: [json.loads(line) for line in file.open()][:pairs] for file in files
    }


def made_up_tasks(rows: Rows) -> dict[str, dict[str, Rows]]:
    """Rows for the other tasks: {task: {file: rows}}."""
    good = [row["sentence_good"] for row in rows]
    bad = [row["sentence_bad"] for row in rows]
    ewok, comps, tracking, wug = [], [], [], []
    for place, (text, other) in enumerate(zip(good, bad, strict=True)):
        before, after = good[place - 1], good[place - 2]
        meta = {"Domain": "made-up", "ContextType": "a", "ContextDiff": "b"}
        contexts = {"Context1": before, "Context2": after, "TargetDiff": "c"}
        ewok.append({**contexts, **meta, "Target1": text, "Target2": other})
        half = len(text.split()) // 2
        comps.append(
            {
                "prefix_acceptable": " ".join(text.split()[:half]),
                "prefix_unacceptable": " ".join(before.split()[:half]),
                "property_phrase": " ".join(text.split()[half:]),
            }
        )
        options = [
            " " + " ".join(each.split()[half:]) for each in (text, before, after)
        ]
        prefix = f"{after} {before} Box {place % 7} contains"
        tracking.append({"input_prefix": prefix, "options": options, "numops": 1})
        wug.append({"sentences": f"{text}\t{other}", "ratio": str(place % 10 / 10)})
    return {
        "ewok": {"made-up.jsonl": ewok},
        "comps": {"comps_base.jsonl": comps},
        "entity_tracking": {"regular.jsonl": tracking},
        "wug_adj": {"wug.jsonl": wug},
    }


def made_up_words(rows: Rows, number: int) -> Iterator[tuple[str, str]]:
    """(context, word) of whole sentences; contexts do not end in a space.

    Before the first word stands "None", which the pipeline reads for an empty cell.
    """
    words = (
        (" ".join(text.split()[:place]) or "None", word)
        for text in (row["sentence_good"] for row in rows)
        for place, word in enumerate(text.split())
    )
    return (pair for pair, _ in zip(words, range(number), strict=False))


# --- sentences --------------------------------------------------------------------


class Theirs(NamedTuple):
    """What the pipeline computes for one item."""

    sentences: list[str]
    completions: list[str]
    scores: list[float]  # of each sentence
    chosen: int


def pipeline_scores(task: str, files: dict[str, Rows], exported: str) -> list[Theirs]:
    """Scores sentences by the pipeline; its ranking is watched, not changed."""
    package = "evaluation_pipeline.sentence_zero_shot"
    results = importlib.import_module(f"{package}.compute_results")
    dataset = importlib.import_module(f"{package}.dataset")
    run = importlib.import_module(f"{package}.run")
    found: list[Theirs] = []
    name = "rank_and_evaluate_wug" if "wug" in task else "rank_and_evaluate"
    rank = getattr(results, name)

    def watched(args: Any, stats: Any, log_probs: Any, raw: Any, *others: Any) -> None:
        for scores, sentences in zip(
            zip(*log_probs[1.0], strict=True), raw, strict=True
        ):
            values = [float(score) for score in scores]
            parts = sentences["sentences"], sentences["completions"]
            found.append(Theirs(*parts, values, -1))
        rank(args, stats, log_probs, raw, *others)

    with tempfile.TemporaryDirectory() as folder:
        for file, rows in files.items():
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (Path(folder) / file).write_text(text)
        args = SimpleNamespace(
            backend="causal",
            task=task,
            data_path=Path(folder),
            model_path_or_name=exported,
            revision_name=None,
            images_path=None,
            image_template=None,
            full_sentence_scores=False,
            save_predictions=True,
            batch_size=64,
        )
        model, loader = run.get_model(args), dataset.get_dataloader(args)
        setattr(results, name, watched)
        try:
            _, predictions = results.compute_results(args, model, loader, [1.0])
        finally:
            setattr(results, name, rank)
    # Predictions stand by paradigm, in the order of its items.
    answers = {uid: iter(each["predictions"]) for uid, each in predictions[1.0].items()}
    uids = [item["UID"] for item in loader.dataset.data]
    field = "sentences" if task == "comps" else "completions"
    return [
        item._replace(chosen=getattr(item, field).index(next(answers[uid])["pred"]))
        for item, uid in zip(found, uids, strict=True)
    ]


def our_scores(model: TrainedModel, items: Sequence[Theirs]) -> list[list[float]]:
    """log P(completion | newline, what is before it), as `TrainedModel.log_probs`."""
    newline = model.tokenizer.newline_id
    windows = []
    for item in items:
        for sentence, completion in zip(item.sentences, item.completions, strict=True):
            context = sentence[: len(sentence) - len(completion)]
            line = encode_line(context, completion, model.tokenizer.encode)
            windows.append(ReadingWindow([newline, *line.ids], 1 + line.num_context))
    config = dataclasses.replace(model.config, dtype="float32")
    score = Scorer(config, model.tokenizer.vocab_size)
    sums = (
        each.log_probs.sum(dtype="float64") for each in score(model.params, windows)
    )
    return [[float(next(sums)) for _ in item.sentences] for item in items]


def compare_sentences(items: Sequence[Theirs], ours: Sequence[list[float]]) -> Compared:
    """Their scores and choices beside ours; our ties are not counted as different."""
    gaps = [
        abs(np.subtract(item.scores, scores)).max()
        for item, scores in zip(items, ours, strict=True)
    ]
    differ = tied = 0
    for item, scores in zip(items, ours, strict=True):
        best = np.flatnonzero(np.asarray(scores) == max(scores))
        tied += len(best) > 1
        differ += item.chosen not in best
    return Compared(len(items), float(max(gaps)), differ, tied)


# --- words ------------------------------------------------------------------------


def our_surprisals(
    model: TrainedModel, words: Sequence[tuple[str, str]]
) -> tuple[np.ndarray, np.ndarray]:
    """[N] nats of each word behind its context, and [N] its number of tokens."""
    lines = [f"{context} {word}" for context, word in words]
    last = {word.line: word for word in model.surprisal("\n".join(lines))}
    found = [last[number + 1] for number in range(len(lines))]
    return np.array([w.nats for w in found]), np.array([w.num_tokens for w in found])


def reading_surprisals(
    exported: str, words: Sequence[tuple[str, str]], space: tuple[str, str]
) -> np.ndarray:
    """[N] nats by the pipeline's reading task; spaces go between context and word."""
    import transformers

    package = importlib.import_module(
        "evaluation_pipeline.reading.evaluation_functions"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    tokenizer = transformers.AutoProcessor.from_pretrained(exported)
    return np.array(
        [
            -math.log(
                package.get_p2(context + space[0], space[1] + word, model, tokenizer)[0]
            )
            for context, word in words
        ]
    )


def acquisition_surprisals(
    exported: str, words: Sequence[tuple[str, str]]
) -> np.ndarray:
    """[N] nats by the pipeline's task of the age of acquisition."""
    package = importlib.import_module(
        "evaluation_pipeline.AoA_word.evaluation_functions"
    )
    extractor = package.StepSurprisalExtractor(None, exported, "causal", "cpu")
    model = extractor.load_model_for_step(None)
    processor, tokenizer = extractor.load_tokenizer_for_step(None)
    return np.array(
        [
            extractor.compute_surprisal(
                model, processor, tokenizer, context, word, use_bos_only=False
            )
            for context, word in words
        ]
    )


# --- the program ------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", help="run folder")
    parser.add_argument("exported", help="the same step, for transformers")
    parser.add_argument("--step", default="newest", help="of the run")
    parser.add_argument("--pipeline", required=True, help="its folder strict/")
    parser.add_argument("--blimp", required=True, help="BLiMP's data/")
    parser.add_argument("--paradigms", type=count, default=10)
    parser.add_argument("--pairs", type=count, default=300, help="of each paradigm")
    parser.add_argument("--words", type=count, default=100)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Scores by both and prints a table."""
    flags = parse(arguments)
    record = harness.describe("experiments.babylm_pipeline", arguments)
    sys.path.insert(0, str(Path(flags.pipeline).resolve()))
    model = gpt1_jax.load(flags.run, flags.step)
    blimp = read_blimp(Path(flags.blimp), flags.paradigms, flags.pairs)
    some = [
        row for rows in blimp.values() for row in rows[:: max(1, flags.pairs // 20)]
    ]
    result: dict[str, dict[str, float]] = {}
    for task, files in {"blimp": blimp, **made_up_tasks(some)}.items():
        items = pipeline_scores(task, files, flags.exported)
        result[task] = compare_sentences(items, our_scores(model, items))._asdict()
    words = list(made_up_words(some, flags.words))
    ours, tokens = our_surprisals(model, words)
    theirs = {
        "reading": reading_surprisals(flags.exported, words, ("", "")),
        "reading, space in word": reading_surprisals(flags.exported, words, ("", " ")),
        "reading, space in item": reading_surprisals(flags.exported, words, (" ", "")),
        "age of acquisition": acquisition_surprisals(flags.exported, words),
    }
    for task, nats in theirs.items():
        gaps = abs(nats - ours)
        for name, chosen in (("one token", tokens == 1), ("several", tokens > 1)):
            result[f"{task}, {name}"] = {
                "items": int(chosen.sum()),
                "largest": float(gaps[chosen].max(initial=0)),
                "mean": float(gaps[chosen].mean()),
            }
    _print(result)
    if flags.output:
        harness.write_json(flags.output, record, flags, result)


def _print(result: dict[str, dict[str, float]]) -> None:
    print("| task | items | largest difference, nats | other choices | ties |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for task, row in result.items():
        differ, tied = row.get("differ", ""), row.get("tied", "")
        print(f"| {task} | {row['items']} | {row['largest']:.1e} | {differ} | {tied} |")


if __name__ == "__main__":
    main(sys.argv[1:])
