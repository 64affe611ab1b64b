"""BLiMP: this package against transformers, item by item and in time.

    python -m benchmarks.peers.minimal_pairs --run=RUN --blimp=DIR
        [--tasks=island_effects+morphology] [--pairs=100] [--output=FILE]

DIR holds BLiMP's own files, PARADIGM.jsonl. The run is exported as
`configs/convert.py:huggingface` exports it, and its `OpenAIGPTLMHeadModel` scores the
same ids: a newline, then the sentence. Where the exported tokenizer reads a sentence
differently, this is counted. Both compute on the CPU, in float32 and with as many
threads.

The peer does what it can: sentences of similar length together, nothing read behind
their last tokens, logits only where a token is scored. The fastest of its ways, found
on a sample before the turns, scores all. Ours scores as `configs/minimal_pairs.py`
does. As in our program, glibc keeps the memory that either frees. The first turn of
each is not timed.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import count, some_of
from benchmarks.paper_model import load_config
from gpt1_jax.main import keep_freed_memory

OURS, PEER = "gpt1_jax", "transformers"
MOST_NATS = 1e-4  # by which the scores of a sentence may differ
_TRIAL = 2_000  # sentences of the sample

# Sentences, as ids, to their log-probabilities in nats.
Score = Callable[[], list[np.ndarray]]


def load(flags: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The run, and the pairs of each of BLiMP's terms as its tokenizer spells them."""
    from gpt1_jax import config as config_lib
    from gpt1_jax.runs.open import open_run
    from gpt1_jax.studies.minimal_pairs.pairs import load_pairs, select_pairs

    values = load_config("minimal_pairs", flags.tasks)
    values.update(init_from=flags.run, step=flags.step, dtype="float32")
    values.data.update(source="official", dir=flags.blimp, max_pairs=flags.pairs)
    config = config_lib.load(values.to_dict())
    run = open_run(config.init_from, config.step)
    tasks = {
        task.task.name: load_pairs(
            task, config.data, run.tokenizer, run.model.max_seq_len
        )
        for task in select_pairs(config.tasks, config.data)
    }
    return run, tasks


def make_ours(run: Any, tasks: Mapping[str, Any]) -> Score:
    """Scores the pairs term by term, as the job does."""
    import jax
    import jax.numpy as jnp

    from gpt1_jax.inference.scoring import BATCH_TOKENS, Scorer
    from gpt1_jax.runs.scoring_model import scoring_model

    model = scoring_model(run.model_in("float32"), BATCH_TOKENS)
    score = Scorer(model, run.tokenizer.vocab_size)
    params = jax.tree.map(jnp.asarray, run.language_model)
    return lambda: [
        each.log_probs
        for answers in tasks.values()
        for each in score(params, answers.windows)
    ]


def export(flags: argparse.Namespace, folder: str) -> None:
    """Writes the run to a new folder for transformers."""
    from gpt1_jax import config as config_lib
    from gpt1_jax.jobs import convert

    values = load_config("convert", "huggingface")
    values.update(init_from=flags.run, step=flags.step)
    convert.run(config_lib.load(values.to_dict()), folder)


def num_read_differently(folder: str, tasks: Mapping[str, Any]) -> int:
    """Sentences for which the exported tokenizer has other ids than ours."""
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(folder)
    differ = 0
    for answers in tasks.values():
        texts = [text for each in answers.examples for text in each.choices]
        ids = encode(texts, add_special_tokens=False)["input_ids"]
        differ += sum(
            found != window.ids[window.num_context :]
            for found, window in zip(ids, answers.windows, strict=True)
        )
    return differ


def table(results: Mapping[str, Any], agreement: Mapping[str, Any]) -> str:
    """A line for each, and what they disagree on."""
    header = (
        "scored by",
        "median, s",
        "least, s",
        "CPU, s",
        "sentences/s",
        "speed",
        "first turn, s",
        "accuracy",
        "ties",
    )

    def cells(name: str, r: Mapping[str, Any]) -> list[str]:
        return [
            name,
            f"{r['median_seconds']:.1f}",
            f"{r['min_seconds']:.1f}",
            f"{min(r['cpu_seconds']):.1f}",
            f"{r['sentences_per_second']:,.0f}",
            f"{r['speed_vs_best_torch']:.2f}",
            f"{r['first_seconds']:.1f}",
            f"{100 * r['accuracy']:.2f}",
            str(r["ties"]),
        ]

    lines = [
        f"{agreement['pairs']:,} pairs of {agreement['paradigms']} paradigms, "
        f"{agreement['tokens']:,} tokens scored.",
        f"A sentence's scores differ by at most {agreement['most_nats']:.1e} nats, in "
        f"the mean by {agreement['mean_nats']:.1e}.",
        f"Decisions that differ: {agreement['decisions']}"
        + (
            f"; in their pairs the sentences' scores are within "
            f"{agreement['most_margin']:.1e} nats."
            if agreement["decisions"]
            else "."
        ),
        f"Sentences that the exported tokenizer reads differently: "
        f"{agreement['read_differently']}.",
        f"{PEER} is fastest so: {results[PEER]['way']}.",
        f"{OURS} and its data took {agreement['peak_bytes'] / 2**30:.2f} GiB.",
    ]
    rows = [cells(*item) for item in results.items()]
    return "\n".join([harness.markdown(header, rows), "", *lines])


def main(arguments: Sequence[str]) -> None:
    """Scores in turns, prints the table, writes the JSON file."""
    keep_freed_memory()
    flags = parse(arguments)
    record = harness.describe("peers.minimal_pairs", arguments)
    if harness.missing_packages(harness.PEER_PACKAGES):
        sys.exit("minimal_pairs: there is nothing to compare with")
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    run, tasks = load(flags)
    if any(answers.num_long for answers in tasks.values()):
        sys.exit("minimal_pairs: a sentence is longer than the model's context")
    ours = make_ours(run, tasks)
    results: dict[str, Any] = {OURS: {}, PEER: {}}
    scores = {OURS: _first(ours, results[OURS])}
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    from benchmarks.peers.torch_pairs import make_peer

    sentences = [w.ids for answers in tasks.values() for w in answers.windows]
    with tempfile.TemporaryDirectory() as parent:
        folder = f"{parent}/exported"
        export(flags, folder)
        differ = num_read_differently(folder, tasks)
        chosen = np.random.default_rng(0).permutation(len(sentences))[:_TRIAL]
        sample = [sentences[index] for index in chosen]
        peer = make_peer(folder, sentences, sample, flags, results[PEER])
    scores[PEER] = _first(peer, results[PEER])
    for _ in range(flags.rounds):
        for name, score in ((OURS, ours), (PEER, peer)):
            time.sleep(harness.PAUSE_SECONDS)
            wall, cpu = time.perf_counter(), time.process_time()
            score()
            results[name]["seconds"].append(time.perf_counter() - wall)
            results[name]["cpu_seconds"].append(time.process_time() - cpu)
    harness.compare(results, lambda name: name == PEER)
    agreement = compare_scores(tasks, scores, results)
    agreement.update(read_differently=differ, peak_bytes=peak)
    print(table(results, agreement))
    doubts = []
    if agreement["most_nats"] > MOST_NATS:
        doubts.append(f"scores differ by {agreement['most_nats']:.1e} nats")
    if agreement["decisions"] and agreement["most_margin"] > 2 * MOST_NATS:
        doubts.append("decisions differ where scores are not close")
    harness.finish(
        {**record, "agreement": agreement}, flags, [*results], results, doubts
    )


def _first(score: Score, result: dict[str, Any]) -> list[np.ndarray]:
    """The scores of the first turn, which compiles what there is to compile."""
    start = time.perf_counter()
    scores = score()
    result.update(first_seconds=time.perf_counter() - start, seconds=[], cpu_seconds=[])
    return scores


def compare_scores(
    tasks: Mapping[str, Any],
    log_probs: Mapping[str, list[np.ndarray]],
    results: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """How far the scores agree; adds accuracy, ties and speed to the results.

    Args:
      tasks: the pairs of each term.
      log_probs: by who scored them, those of each sentence's tokens.
      results: to be added to, each with "median_seconds".
    """
    from gpt1_jax.inference.scoring import TokenScores
    from gpt1_jax.studies.answer_scores import score_pairs

    values: dict[str, np.ndarray] = {}
    num_paradigms = 0
    for name, sentences in log_probs.items():
        found, paradigms, start = [], [], 0
        for answers in tasks.values():
            stop = start + len(answers.windows)
            given = [TokenScores(each, each) for each in sentences[start:stop]]
            _, sums, scores = score_pairs(answers, lambda *_, given=given: given, {})
            found.append(sums)
            paradigms += scores["paradigms"].values()
            start = stop
        values[name] = np.concatenate(found)
        num_paradigms = len(paradigms)
        results[name].update(
            accuracy=float(np.mean([each["accuracy"] for each in paradigms])),
            ties=sum(each["ties"] for each in paradigms),
            sentences_per_second=len(sentences) / results[name]["median_seconds"],
        )
    difference = np.abs(values[OURS] - values[PEER])
    margins = {name: each[:, 0] - each[:, 1] for name, each in values.items()}
    differ = np.sign(margins[OURS]) != np.sign(margins[PEER])
    apart = np.abs(np.stack([margins[name][differ] for name in margins]))
    return {
        "pairs": len(difference),
        "paradigms": num_paradigms,
        "tokens": sum(map(len, log_probs[OURS])),
        "most_nats": float(difference.max()),
        "mean_nats": float(difference.mean()),
        "decisions": int(differ.sum()),
        "most_margin": float(apart.max(initial=0.0)),
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", required=True, help="folder of a Transformer")
    parser.add_argument("--blimp", required=True, help="folder of BLiMP's files")
    parser.add_argument("--step", default="default", help="as in configs/")
    text = "paradigms, terms or fields, joined by +"
    parser.add_argument("--tasks", default="blimp", help=text)
    text = "a random subset of each paradigm of this size; 0: all"
    parser.add_argument("--pairs", type=int, default=0, help=text)
    parser.add_argument("--rounds", type=count, default=3, help="turns of each")
    ways = some_of(("eager", "compiled"))
    parser.add_argument(
        "--ways", type=ways, default="eager,compiled", help="the peer's, comma list"
    )
    text = "sentences that the peer may read at a time, comma list"
    parser.add_argument(
        "--batches", type=_counts, default="32,64,128,256,512", help=text
    )
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def _counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


if __name__ == "__main__":
    main(sys.argv[1:])
