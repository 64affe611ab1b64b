"""The effect of each head on a choice: this package against hooks in PyTorch.

    python -m benchmarks.peers.interventions [--layers=12] [--heads=12] [--output=FILE]

A model of the paper's size with random weights chooses between two sentences: D is the
difference of their log-probabilities, nats. The effect of a head is that on D of zeros
in place of its output. Ours is the function of `configs/interventions.py`, which also
gives the effects of each layer's attention and MLP and D after each layer. The peers
are transformers' `OpenAIGPTLMHeadModel` with the same weights:

    hooks          a loop as with TransformerLens: a hook on one head, one forward
                   pass of both sentences, logits of all tokens; then the next head
    hooks_batched  one forward pass with a row for each head and sentence, in which
                   hooks zero each row's head; logits of the tokens scored

Turns are as in `scores.py`, on the CPU, in float32 and with as many threads. Each turn
has a new pair of sentences, the same for all; effects must agree in each, and ours must
compile nothing after the first turn, which is not timed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import count
from benchmarks.paper_model import HEAD_DIM, VOCAB_SIZE, pretrain_config
from gpt1_jax.main import keep_freed_memory

OURS, LOOP, BATCHED = "gpt1_jax", "hooks", "hooks_batched"
MOST_NATS = 1e-4  # by which effects may differ

# The effects [L, H], in nats, of all heads on the choice between two sentences [2, T].
FindEffects = Callable[[np.ndarray], np.ndarray]


def draw_pair(flags: argparse.Namespace, turn: int) -> np.ndarray:
    """Two sentences [2, 1 + tokens] behind one token that is read, not scored.

    Their tokens are the same but for one in the middle.
    """
    rng = np.random.default_rng(turn)
    pair = np.tile(rng.integers(0, flags.vocab_size, 1 + flags.tokens), (2, 1))
    pair[1, 1 + flags.tokens // 2] = (pair[0, 1 + flags.tokens // 2] + 1) % VOCAB_SIZE
    return pair % flags.vocab_size


def make_ours(model: Any, params: Any) -> FindEffects:
    """The study's function."""
    from gpt1_jax.data.words import ReadingWindow
    from gpt1_jax.studies.interventions.effects import find_effects

    def effects(pair: np.ndarray) -> np.ndarray:
        windows = [(ReadingWindow(ids, 1) for ids in pair.tolist())]
        how = {"method": "zero", "num_positions": 0, "batch_tokens": 1}
        given = model, model.vocab_size, params, [tuple(*windows)], None
        found = find_effects(*given, **how)
        return found.heads[0] - found.base[0]

    return effects


def make_peers(model: Any, params: Any) -> dict[str, FindEffects]:
    """The peers by their names."""
    import torch
    from etils import epath
    from transformers import OpenAIGPTLMHeadModel
    from transformers.utils.logging import disable_progress_bar

    from gpt1_jax.interop.hugging_face import write_model

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        write_model(epath.Path(folder), model, params)
        peer = OpenAIGPTLMHeadModel.from_pretrained(folder).eval()
    assert peer.dtype == torch.float32
    shape = (model.num_layers, model.num_heads)

    def difference(tokens: torch.Tensor) -> float:
        logits = peer(tokens[:, :-1]).logits
        log_probs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])
        good, bad = log_probs.double().sum((1, 2)).tolist()
        return good - bad

    @torch.inference_mode()
    def one_by_one(pair: np.ndarray) -> np.ndarray:
        tokens, found = torch.from_numpy(pair), np.zeros(shape)
        for layer, head in np.ndindex(shape):
            own = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)

            def without_head(_: Any, inputs: Any, own: slice = own) -> None:
                inputs[0][..., own] = 0

            c_proj = peer.transformer.h[layer].attn.c_proj
            with c_proj.register_forward_pre_hook(without_head):
                found[layer, head] = difference(tokens)
        return found - difference(tokens)

    @torch.inference_mode()
    def together(pair: np.ndarray) -> np.ndarray:
        tokens, heads = torch.from_numpy(pair), torch.arange(model.num_heads)
        rows = tokens.repeat(1 + model.num_layers * model.num_heads, 1)
        hooks = []
        for layer, block in enumerate(peer.transformer.h):
            first = 1 + layer * model.num_heads

            def without_heads(_: Any, inputs: Any, first: int = first) -> None:
                by_head = inputs[0].unflatten(0, (-1, 2)).unflatten(-1, (-1, HEAD_DIM))
                by_head[first + heads, :, :, heads] = 0

            c_proj = block.attn.c_proj
            hooks.append(c_proj.register_forward_pre_hook(without_heads))
        hidden = peer.transformer(rows[:, :-1])[0]
        for hook in hooks:
            hook.remove()
        same = int((tokens[0] != tokens[1]).nonzero()[0])  # what is before scores alike
        logits = peer.lm_head(hidden[:, same - 1 :])
        chosen = logits.gather(-1, rows[:, same:, None])[..., 0]
        scores = (chosen - logits.logsumexp(-1)).sum(-1)
        differences = (scores[::2] - scores[1::2]).double().numpy()
        return (differences[1:] - differences[0]).reshape(shape)

    return {LOOP: one_by_one, BATCHED: together}


def measure(
    effects: Mapping[str, FindEffects], flags: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The times of each, in turns, and how far they agree."""
    import jax

    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **more: compiled.append(event)
    )
    results: dict[str, Any] = {
        name: {"seconds": [], "cpu_seconds": []} for name in effects
    }
    agreement = {"most_nats": 0.0, "largest_effect": 0.0}
    programs = {"first": 0, "later": 0}
    for turn in range(flags.rounds + 1):
        pair, found = draw_pair(flags, turn), {}
        for name, find in effects.items():
            time.sleep(harness.PAUSE_SECONDS)
            compiled.clear()
            wall, cpu = time.perf_counter(), time.process_time()
            found[name] = find(pair)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if turn:
                results[name]["seconds"].append(wall)
                results[name]["cpu_seconds"].append(cpu)
            else:
                results[name]["first_seconds"] = wall
            number = sum("backend_compile" in event for event in compiled)
            programs["later" if turn else "first"] += number
            print(
                f"{name}, turn {turn} of {flags.rounds}: {wall:.4g} s", file=sys.stderr
            )
        for each in found.values():
            apart = float(np.abs(each - found[OURS]).max())
            agreement["most_nats"] = max(agreement["most_nats"], apart)
            largest = float(np.abs(each).max())
            agreement["largest_effect"] = max(agreement["largest_effect"], largest)
    harness.compare(results, lambda name: name == LOOP)
    return results, {**agreement, "programs": programs}


def table(results: Mapping[str, Any], agreement: Mapping[str, Any]) -> str:
    """A line for each, and how far they agree."""
    header = (
        "effects by",
        "median, s",
        "least, s",
        "CPU, s",
        "speed vs hooks",
        "first turn, s",
    )
    rows = [
        [
            name,
            f"{r['median_seconds']:.2f}",
            f"{r['min_seconds']:.2f}",
            f"{min(r['cpu_seconds']):.2f}",
            f"{r['speed_vs_best_torch']:.2f}",
            f"{r['first_seconds']:.1f}",
        ]
        for name, r in results.items()
    ]
    lines = [
        f"Effects are up to {agreement['largest_effect']:.1e} nats and differ by at "
        f"most {agreement['most_nats']:.1e}.",
        f"Programs compiled after the first turn: {agreement['programs']['later']}.",
    ]
    return "\n".join([harness.markdown(header, rows), "", *lines])


def main(arguments: Sequence[str]) -> None:
    """Measures in turns, prints the table, writes the JSON file."""
    keep_freed_memory()
    flags = parse(arguments)
    record = harness.describe("peers.interventions", arguments)
    if harness.missing_packages(harness.PEER_PACKAGES):
        sys.exit("interventions: there is nothing to compare with")
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"

    import jax

    from gpt1_jax.model import language_model

    flags.embed_dim = flags.heads * HEAD_DIM
    model = pretrain_config(flags, "float32").model.with_vocab_size(flags.vocab_size)
    params = language_model.init_params(model, jax.random.key(0))
    ours = {OURS: make_ours(model, params)}
    effects = {**ours, **make_peers(model, jax.device_get(params))}
    results, agreement = measure(effects, flags)
    print(table(results, agreement))
    doubts = []
    if agreement["most_nats"] > MOST_NATS:
        doubts.append(f"effects differ by {agreement['most_nats']:.1e} nats")
    if agreement["programs"]["later"]:
        doubts.append("a program was compiled after the first turn")
    harness.finish(
        {**record, "agreement": agreement}, flags, [*results], results, doubts
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=count, default=12)
    text = f"in each layer, of {HEAD_DIM} dimensions"
    parser.add_argument("--heads", type=count, default=12, help=text)
    parser.add_argument("--vocab_size", type=count, default=VOCAB_SIZE)
    parser.add_argument("--tokens", type=count, default=10, help="of a sentence")
    parser.add_argument("--rounds", type=count, default=5, help="turns of each")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments, argparse.Namespace(batch=1, seq_len=512))


if __name__ == "__main__":
    main(sys.argv[1:])
