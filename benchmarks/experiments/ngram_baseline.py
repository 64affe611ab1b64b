"""An n-gram language model on the tokens of a prepared corpus.

    python -m benchmarks.experiments.ngram_baseline --corpus=DIR [--runs=RUN,RUN]
        [--output=FILE]

It counts the training split and scores the validation split, token by token, with
interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999, sec. 3): the baseline
for a Transformer with the same tokenizer. Runs that were pre-trained on that corpus are
scored on the same tokens, all of them. DIR is the folder of `corpus.json`, by default
under `corpora/` in the cache folder. 35 million tokens take a minute and under 4 GB of
memory.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gpt1_jax
from benchmarks import harness
from gpt1_jax.data import shards
from gpt1_jax.data.windows import ValidWindows
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.training.validation import Validation

_FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # where too few n-grams are rare, as in KenLM
_BATCH_SIZE = 32  # sequences that a run's model reads at a time


class Level(NamedTuple):
    """The G distinct n-grams of one order n.

    An n-gram's id is (rank of its first n - 1 tokens among the distinct
    (n-1)-grams) * vocab_size + last token: exact in int64 at every order, where n
    token ids side by side would not fit.
    """

    ids: np.ndarray  # [G] int64, increasing; the place of an id is its n-gram's rank
    counts: np.ndarray  # [G] int32, occurrences
    suffixes: np.ndarray  # [G] int32, ranks of the last n - 1 tokens


def count_ngrams(tokens: np.ndarray, vocab_size: int, max_order: int) -> list[Level]:
    """The n-grams of orders 1 to `max_order` in `tokens`, [T] ids, T < 2**31."""
    levels = []
    ranks = np.zeros(len(tokens) + 1, np.int32)  # of the (n-1)-gram at each position
    for order in range(1, max_order + 1):
        ids = ranks[:-1].astype(np.int64)
        ids *= vocab_size
        ids += tokens[order - 1 :]
        distinct, places, counts = np.unique(
            ids, return_inverse=True, return_counts=True
        )
        suffixes = np.empty(len(distinct), np.int32)
        suffixes[places] = ranks[1:]
        levels.append(Level(distinct, counts.astype(np.int32), suffixes))
        ranks = places.astype(np.int32)
    return levels


def probabilities(
    levels: Sequence[Level], tokens: np.ndarray, vocab_size: int
) -> np.ndarray:
    """p_n(token | the n - 1 tokens before it) at every position and order.

    The model of order n takes occurrences for its n-grams, and for every shorter
    n-gram g its continuations N1+(. g): how many distinct tokens precede g. Order 0
    is uniform over the vocabulary. The first tokens have shorter histories.

    Args:
      levels: the counts of the training tokens.
      tokens: [T] ids to score, as one stream.
      vocab_size: the same as for the counts.

    Returns:
      [len(levels), T] float64 probabilities, orders in increasing order.
    """
    rows = []
    lower = np.full(len(tokens), 1.0 / vocab_size)
    histories = np.zeros(len(tokens), np.int64)  # ranks of n - 1 tokens; -1: unseen
    for order, level in enumerate(levels, start=1):
        ids = histories * vocab_size + tokens  # negative, so in no level, if unseen
        places = np.searchsorted(level.ids, ids).clip(max=len(level.ids) - 1)
        ranks = np.where(level.ids[places] == ids, places, -1)
        prefixes = level.ids // vocab_size
        rows.append(_interpolate(prefixes, level.counts, histories, ranks, lower))
        if order < len(levels):
            continuations = np.bincount(levels[order].suffixes, minlength=len(prefixes))
            lower = _interpolate(prefixes, continuations, histories, ranks, lower)
            histories = np.concatenate([[-1], ranks[:-1]])
    return np.stack(rows)


def _interpolate(
    prefixes: np.ndarray,
    counts: np.ndarray,
    histories: np.ndarray,
    ranks: np.ndarray,
    lower: np.ndarray,
) -> np.ndarray:
    """p(w|h) = (c(hw) - D(c(hw)) + sum_v D(c(hv)) p_lower(w|h')) / sum_v c(hv).

    Where h was never continued, p(w|h) = p_lower(w|h').

    Args:
      prefixes, counts: [G] the rank of h and c(hw) of each distinct n-gram hw.
      histories, ranks: [T] the ranks of h and of hw at each position; -1 if unseen.
      lower: [T] p_lower(w|h'), h' being h without its first token.
    """
    discounts = np.array([0.0, *discounts_of(counts)])[np.minimum(counts, 3)]
    num_histories = int(histories.max()) + 1
    totals = np.bincount(prefixes, counts, minlength=num_histories)
    masses = np.bincount(prefixes, discounts, minlength=num_histories)
    kept = np.where(ranks >= 0, counts[ranks] - discounts[ranks], 0.0)
    seen = (histories >= 0) & (totals[histories] > 0)
    h, result = histories[seen], lower.copy()
    result[seen] = (kept[seen] + masses[h] * lower[seen]) / totals[h]
    return result


def discounts_of(counts: np.ndarray) -> tuple[float, ...]:
    """The discounts (D1, D2, D3+) of counts 1, 2 and 3 or more.

    D_k = k - (k + 1) Y n_{k+1} / n_k with Y = n_1 / (n_1 + 2 n_2), where n_k n-grams
    have count k; (0.5, 1, 1.5) where an n_k is 0 or a D_k lies outside [0, k].
    """
    n = [int(np.count_nonzero(counts == k)) for k in range(5)]
    if 0 in n[1:]:
        return _FALLBACK_DISCOUNTS
    y = n[1] / (n[1] + 2 * n[2])
    found = tuple(k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))
    valid = all(0 <= d <= k for k, d in enumerate(found, start=1))
    return found if valid else _FALLBACK_DISCOUNTS


def find_vocab_size(corpus: shards.Corpus, largest_id: int) -> int:
    """The vocabulary of the corpus' tokenizer if it lies beside it, or max id + 1."""
    folder = corpus.directory.resolve().parent.parent / "tokenizers"
    for path in sorted(folder.glob("*/tokenizer.json")):
        description = json.loads(path.read_text())
        if description["content_digest"] == corpus.tokenizer_digest:
            return int(description["vocab_size"])
    return largest_id + 1


def model_loss(run: str, corpus: shards.Corpus) -> float:
    """Nats per token of a run's newest model on the whole validation split.

    The text is cut into windows of the model's context; the first token of each is not
    predicted.

    Raises:
      ValueError: if the run has another tokenizer than the corpus.
    """
    model = gpt1_jax.load(run)
    if model.tokenizer.digest != corpus.tokenizer_digest:
        raise ValueError(
            f"The tokenizer of {run} is not that of the corpus in {corpus.directory}; "
            "pass the folder of the corpus that the run was trained on."
        )
    windows = ValidWindows(
        shards.TokenReader(corpus, "valid"),
        model.config.max_seq_len,
        _BATCH_SIZE,
        slice(0, _BATCH_SIZE),
    )
    validation = Validation(model.config, windows, 0, make_mesh())
    loss = validation(model.params, lambda: False)
    assert loss is not None  # nothing stops it
    return loss


def evaluate(
    directory: Path, max_order: int, vocab_size: int = 0, runs: Sequence[str] = ()
) -> dict:
    """Counts the training split and scores the validation split of a corpus.

    As in the Transformer's validation loss, all tokens but the first are predicted.

    Returns:
      Sizes, and under "orders" for each order, under "runs" for each run: nats and
      perplexity per token, nats and bits per word, where per word = per token * tokens
      / words of the split.

    Raises:
      ValueError: if the order, the vocabulary size or a run does not fit the corpus.
    """
    corpus = shards.open_corpus(directory)
    readers = [shards.TokenReader(corpus, name) for name in ("train", "valid")]
    train, valid = (reader.read(0, len(reader)) for reader in readers)
    largest_id = max(int(train.max()), int(valid.max()))
    vocab_size = vocab_size or find_vocab_size(corpus, largest_id)
    if not 1 <= max_order < len(train):
        raise ValueError(f"--max_order={max_order} must lie in [1, {len(train)}).")
    if vocab_size <= largest_id:
        raise ValueError(
            f"--vocab_size={vocab_size} is too small: the corpus holds the token id "
            f"{largest_id}; leave it out to take the tokenizer's."
        )
    run_losses = {run: model_loss(run, corpus) for run in runs}
    levels = count_ngrams(train, vocab_size, max_order)
    losses = -np.log(probabilities(levels, valid, vocab_size)[:, 1:]).mean(axis=1)
    orders = dict(enumerate(losses.tolist(), start=1))
    tokens_per_word = len(valid) / corpus.valid.words
    return {
        "corpus": corpus.directory.name,
        "vocab_size": vocab_size,
        "train_tokens": len(train),
        "valid_tokens": len(valid),
        "valid_words": corpus.valid.words,
        "orders": _rows("order", orders, tokens_per_word),
        "runs": _rows("run", run_losses, tokens_per_word),
    }


def _rows(
    label: str, losses: Mapping[Any, float], tokens_per_word: float
) -> list[dict[str, Any]]:
    return [
        {
            label: name,
            "nats_per_token": nats,
            "perplexity": math.exp(nats),
            "nats_per_word": nats * tokens_per_word,
            "bits_per_word": nats * tokens_per_word / math.log(2),
        }
        for name, nats in losses.items()
    ]


def markdown_table(result: Mapping[str, Any]) -> str:
    """The orders and runs of `evaluate` as a Markdown table."""
    rows = result["orders"] + result["runs"]
    first = "order or run" if result["runs"] else "order"
    header = [first, *(name.replace("_", " ") for name in list(rows[0])[1:])]
    cells = []
    for row in rows:
        name, *values = row.values()
        cells.append([str(name), *(f"{value:.3f}" for value in values)])
    return harness.markdown(header, cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, prints the table, writes the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True, help="prepared corpus")
    parser.add_argument("--max_order", type=int, default=5)
    parser.add_argument("--vocab_size", type=int, default=0, help="0: the tokenizer's")
    parser.add_argument("--runs", default="", help="pre-trained on it, comma list")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    flags = parser.parse_args(arguments)
    runs = list(filter(None, flags.runs.split(",")))
    result = evaluate(flags.corpus, flags.max_order, flags.vocab_size, runs)
    print(markdown_table(result))
    if flags.output:
        flags.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
