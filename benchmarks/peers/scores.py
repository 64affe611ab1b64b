"""Scoring text: this package against transformers, token by token and in time.

    python -m benchmarks.peers.scores minimal_pairs --run=RUN --data=DIR
    python -m benchmarks.peers.scores zero_shot --run=RUN --data=DIR --tasks=sst2+race
    python -m benchmarks.peers.scores surprisal --run=RUN --data=FILE

DIR holds BLiMP's own files, PARADIGM.jsonl, or TASK/SPLIT.jsonl; FILE is a text. The
run is exported as `configs/convert.py:huggingface` exports it, and its
`OpenAIGPTLMHeadModel` scores the same windows of ids. Where the exported tokenizer
reads a sentence of a pair differently, this is counted. Both compute on the CPU, in
float32 and with as many threads, what the study needs: for surprisal ranks and
entropies too.

The peer does what it can: windows of similar length together, nothing read behind their
last tokens, logits only where a token is scored. The fastest of its ways, found on a
sample before the turns, scores all. Ours scores as the study does. As in our program,
glibc keeps the memory that either frees. The first turn of each is not timed.
"""

import argparse
import itertools
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness
from benchmarks.harness import count, some_of
from benchmarks.paper_model import load_config
from gpt1_jax.main import keep_freed_memory

OURS, PEER = "gpt1_jax", "transformers"
MOST_NATS = 1e-4  # by which the scores of a token may differ
_TRIAL = 25_000  # tokens of the sample

# Scores all windows: for each, [1, T] log-probabilities in nats of its T tokens after
# the context, or [3, T] with ranks and entropies.
Score = Callable[[], list[np.ndarray]]


class Texts(NamedTuple):
    """What is scored."""

    together: list[list[Any]]  # the reading windows of each task
    answers: list[Any]  # for each task, if they answer its examples
    ranks_and_entropies: bool  # whether these are needed too

    @property
    def windows(self) -> list[Any]:
        return list(itertools.chain(*self.together))


def load(flags: argparse.Namespace) -> tuple[Any, Texts]:
    """The run, and what it scores, as its tokenizer spells it."""
    from gpt1_jax import config as config_lib
    from gpt1_jax.runs.open import open_run

    tasks = (flags.tasks,) if flags.study != "surprisal" else ()
    values = load_config(flags.study, *tasks)
    values.update(init_from=flags.run, step=flags.step, dtype="float32")
    if flags.study == "minimal_pairs":
        values.data.update(source="official", max_pairs=flags.examples)
    elif flags.study == "zero_shot":
        values.data.update(source="jsonl", max_examples=flags.examples)
    else:
        values.update(input=flags.data, context=flags.context)
    if tasks:
        values.data.dir = flags.data
    config: Any = config_lib.load(values.to_dict())
    run = open_run(config.init_from, config.step)
    if not tasks:
        return run, _text(config, run)
    answers = list(_answers(config, run))
    return run, Texts([each.all_windows for each in answers], answers, False)


def _answers(config: Any, run: Any) -> Any:
    """The answers of each task."""
    from gpt1_jax.studies.pairs import load_pairs, select_pairs
    from gpt1_jax.studies.zero_shot.tasks import load_answers, select_zero_shot_tasks

    given = (config.data, run.tokenizer, run.model.max_seq_len)
    if config.job == "minimal_pairs":
        for task in select_pairs(config.tasks, config.data):
            answers = load_pairs(task, *given)
            if answers.num_long:
                sys.exit("scores: a sentence is longer than the model's context")
            yield answers
    else:
        for task in select_zero_shot_tasks(config.tasks):
            yield load_answers(task, *given)


def _text(config: Any, run: Any) -> Texts:
    """The windows of a text, as much together as the job takes."""
    from gpt1_jax.data.words import read_lines, words_in_sentences
    from gpt1_jax.inference.surprisal import window_chunks, word_windows

    words = words_in_sentences(run.tokenizer, read_lines(config.input), apart=False)
    windows = word_windows(words, config, run.model, run.tokenizer.newline_id)
    return Texts(list(window_chunks(windows)), [], True)


def make_ours(run: Any, texts: Texts) -> Score:
    """Scores the windows task by task, as the job does."""
    import jax
    import jax.numpy as jnp

    from gpt1_jax.inference.scoring import Scorer
    from gpt1_jax.runs.scoring_model import scoring_model

    model = scoring_model(run.model_in("float32"))
    needed = texts.ranks_and_entropies
    score = Scorer(model, run.tokenizer.vocab_size, ranks_and_entropies=needed)
    params = jax.tree.map(jnp.asarray, run.language_model)
    return lambda: [
        np.stack([each.log_probs, each.ranks, each.entropies])
        if needed
        else each.log_probs[None]
        for windows in texts.together
        for each in score(params, windows)
    ]


def export(flags: argparse.Namespace, folder: str) -> None:
    """Writes the run to a new folder for transformers."""
    from gpt1_jax import config as config_lib
    from gpt1_jax.jobs import convert

    values = load_config("convert", "huggingface")
    values.update(init_from=flags.run, step=flags.step)
    convert.run(config_lib.load(values.to_dict()), folder)


def num_read_differently(folder: str, tasks: Sequence[Any]) -> int:
    """Sentences for which the exported tokenizer has other ids than ours."""
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(folder)
    differ = 0
    for answers in tasks:
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
        "windows/s",
        "speed",
        "first turn, s",
    )

    def cells(name: str, r: Mapping[str, Any]) -> list[str]:
        return [
            name,
            f"{r['median_seconds']:.1f}",
            f"{r['min_seconds']:.1f}",
            f"{min(r['cpu_seconds']):.1f}",
            f"{agreement['windows'] / r['median_seconds']:,.0f}",
            f"{r['speed_vs_best_torch']:.2f}",
            f"{r['first_seconds']:.1f}",
        ]

    lines = [
        f"{agreement['windows']:,} windows, {agreement['tokens']:,} tokens scored.",
        f"A token's scores differ by at most {agreement['most_token_nats']:.1e} nats, "
        f"a window's by {agreement['most_nats']:.1e}.",
    ]
    if "decisions" in agreement:
        lines.append(
            f"Of {agreement['examples']:,} examples, decisions that differ: "
            f"{agreement['decisions']}"
            + (
                f"; their best answers are within {agreement['most_margin']:.1e} nats."
                if agreement["decisions"]
                else "."
            )
        )
    if "read_differently" in agreement:
        lines.append(
            "Sentences that the exported tokenizer reads differently: "
            f"{agreement['read_differently']}."
        )
    if "ranks" in agreement:
        lines.append(
            f"Ranks that differ: {agreement['ranks']}; entropies differ by at most "
            f"{agreement['most_entropy']:.1e} nats."
        )
    lines += [
        f"{PEER} is fastest so: {results[PEER]['way']}.",
        f"{OURS} and its data took {agreement['peak_bytes'] / 2**30:.2f} GiB.",
    ]
    rows = [cells(*item) for item in results.items()]
    return "\n".join([harness.markdown(header, rows), "", *lines])


def main(arguments: Sequence[str]) -> None:
    """Scores in turns, prints the table, writes the JSON file."""
    keep_freed_memory()
    flags = parse(arguments)
    record = harness.describe("peers.scores", arguments)
    if harness.missing_packages(harness.PEER_PACKAGES):
        sys.exit("scores: there is nothing to compare with")
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    run, texts = load(flags)
    ours = make_ours(run, texts)
    results: dict[str, Any] = {OURS: {}, PEER: {}}
    scores = {OURS: _first(ours, results[OURS])}
    unit = 1 if sys.platform == "darwin" else 1024
    agreement: dict[str, Any] = {
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    }

    from benchmarks.peers.torch_scores import make_peer

    with tempfile.TemporaryDirectory() as parent:
        folder = f"{parent}/exported"
        export(flags, folder)
        if flags.study == "minimal_pairs":
            differ = num_read_differently(folder, texts.answers)
            agreement["read_differently"] = differ
        given = (texts.windows, _sample(texts.windows), texts.ranks_and_entropies)
        peer = make_peer(folder, *given, flags, results[PEER])
    scores[PEER] = _first(peer, results[PEER])
    for _ in range(flags.rounds):
        for name, score in ((OURS, ours), (PEER, peer)):
            time.sleep(harness.PAUSE_SECONDS)
            wall, cpu = time.perf_counter(), time.process_time()
            score()
            results[name]["seconds"].append(time.perf_counter() - wall)
            results[name]["cpu_seconds"].append(time.process_time() - cpu)
    harness.compare(results, lambda name: name == PEER)
    agreement.update(compare_scores(texts, scores[OURS], scores[PEER]))
    print(table(results, agreement))
    doubts = []
    if agreement["most_token_nats"] > MOST_NATS:
        doubts.append(f"scores differ by {agreement['most_token_nats']:.1e} nats")
    if agreement.get("most_margin", 0.0) > 2 * MOST_NATS:
        doubts.append("decisions differ where scores are not close")
    harness.finish(
        {**record, "agreement": agreement}, flags, [*results], results, doubts
    )


def _sample(windows: Sequence[Any]) -> list[Any]:
    """Some of the windows."""
    order = np.random.default_rng(0).permutation(len(windows))
    tokens = np.cumsum([len(windows[index].ids) for index in order])
    return [windows[index] for index in order[: 1 + np.searchsorted(tokens, _TRIAL)]]


def _first(score: Score, result: dict[str, Any]) -> list[np.ndarray]:
    """The scores of the first turn, which compiles what there is to compile."""
    start = time.perf_counter()
    scores = score()
    result.update(first_seconds=time.perf_counter() - start, seconds=[], cpu_seconds=[])
    return scores


def compare_scores(
    texts: Texts, ours: list[np.ndarray], peers: list[np.ndarray]
) -> dict[str, Any]:
    """How far the scores of all windows agree."""
    nats = np.abs([a[0].sum() - b[0].sum() for a, b in zip(ours, peers, strict=True)])
    difference = np.abs(np.concatenate(ours, axis=1) - np.concatenate(peers, axis=1))
    found: dict[str, Any] = {
        "windows": len(nats),
        "tokens": sum(scores.shape[1] for scores in ours),
        "most_token_nats": float(difference[0].max()),
        "most_nats": float(nats.max()),
    }
    if texts.ranks_and_entropies:
        found["ranks"] = int((difference[1] > 0).sum())
        found["most_entropy"] = float(difference[2].max())
        return found
    margins, examples, start = list[float](), 0, 0
    for answers in texts.answers:
        start += len(answers.all_windows)
        if answers.threshold_on:  # one answer, which a threshold decides
            continue
        stop = start - len(answers.windows)
        a, b = (
            answers.compare([scores[0] for scores in each[stop:start]])
            for each in (ours, peers)
        )
        examples += len(a)
        for first, second in zip(a, b, strict=True):
            if (best := first.argmax()) != (other := second.argmax()):
                margins += [first[best] - first[other], second[other] - second[best]]
    found["examples"], found["decisions"] = examples, len(margins) // 2
    return {**found, "most_margin": float(max(margins, default=0.0))}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    studies = ("minimal_pairs", "zero_shot", "surprisal")
    parser.add_argument("study", choices=studies)
    parser.add_argument("--run", required=True, help="folder of a Transformer")
    text = "BLiMP's files, the tasks' files, or a text"
    parser.add_argument("--data", required=True, help=text)
    parser.add_argument("--step", default="default", help="as in configs/")
    text = "of the study, joined by +; default: blimp, or all"
    parser.add_argument("--tasks", default="", help=text)
    text = "a random subset of this size of each task; 0: all"
    parser.add_argument("--examples", type=int, default=0, help=text)
    parser.add_argument("--rounds", type=count, default=3, help="turns of each")
    ways = some_of(("eager", "compiled"))
    parser.add_argument(
        "--ways", type=ways, default="eager,compiled", help="the peer's, comma list"
    )
    text = "of the words of a text, as in configs/"
    parser.add_argument(
        "--context", choices=("line", "text"), default="line", help=text
    )
    text = "tokens that the peer may read at a time, comma list"
    parser.add_argument(
        "--batches", type=_counts, default="512,1024,2048,4096,8192", help=text
    )
    parser.add_argument("--output", type=Path, help="JSON file to write")
    flags = parser.parse_args(arguments)
    flags.tasks = flags.tasks or ("blimp" if flags.study == "minimal_pairs" else "all")
    return flags


def _counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


if __name__ == "__main__":
    main(sys.argv[1:])
