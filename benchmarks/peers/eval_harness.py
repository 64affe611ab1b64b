"""lm_eval on a run folder: this package against its class for transformers.

    python -m benchmarks.peers.eval_harness RUN SENTENCES [--limit=2000] [--output=FILE]

RUN is a run folder, and SENTENCES a text file with one on each line, or JSON lines like
BLiMP's, whose texts are taken from `sentence_good` and `sentence_bad`, or a folder of
these. The log-likelihood of each sentence, without a context, is asked for as lm_eval
asks, so encoding, sorting and batching count, and loading does not. The peer is `HFLM`
on the run's export for transformers, in float32 like ours, with several batch sizes.
Variants take turns, each in its process; all sentences are scored once before the first
turn, so that everything is compiled, and a few before each, untimed.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Trainer, Variant, count, some_of

_COLUMNS = ("sentence_good", "sentence_bad")
_UNTIMED = 64
_PEER_BATCHES = (16, 64, 256, 512)
_DRAW = "peers.eval_harness.draw_sentences"
_PACKAGES = ("torch", "transformers", "lm_eval.models.huggingface")


def all_variants() -> dict[str, Variant]:
    """Every variant by its name."""
    variants = {
        f"hf_{size}": Variant(
            "peers.eval_harness.build_peer", "float32", {"size": size}, _PACKAGES, _DRAW
        )
        for size in _PEER_BATCHES
    }
    ours = ("gpt1_jax.eval_harness",)
    build = "peers.eval_harness.build_ours"
    variants["ours"] = Variant(build, "float32", {}, ours, _DRAW)
    return variants


VARIANTS = all_variants()


def read_sentences(path: Path) -> list[str]:
    """The sentences of a file, or of the `.jsonl` files of a folder, one from each."""
    if path.is_dir():
        files = [read_sentences(each) for each in sorted(path.glob("*.jsonl"))]
        turns = itertools.zip_longest(*files)
        return [text for turn in turns for text in turn if text is not None]
    lines = path.read_text().splitlines()
    if path.suffix != ".jsonl":
        return [line for line in lines if line.strip()]
    return [json.loads(line)[column] for line in lines for column in _COLUMNS]


def draw_sentences(flags: argparse.Namespace) -> Iterator[list[str]]:
    """All sentences, then in each turn a few, untimed, and all."""
    sentences = read_sentences(flags.sentences)[: flags.limit]
    for number in itertools.count():
        yield sentences if number % 2 == 0 else sentences[:_UNTIMED]


def build_ours(flags: argparse.Namespace, dtype: str) -> Trainer:
    """Our class; a "step" scores the sentences."""
    import jax

    from gpt1_jax.eval_harness import RunLM

    model = RunLM(str(flags.run), dtype=dtype)
    device = jax.devices()[0]

    def peak_bytes() -> int | None:
        return (device.memory_stats() or {}).get("peak_bytes_in_use")

    return _trainer(model, device.device_kind, peak_bytes)


def build_peer(flags: argparse.Namespace, dtype: str, *, size: int) -> Trainer:
    """lm_eval's own class, on the exported folder."""
    import torch
    from lm_eval.models.huggingface import HFLM

    from benchmarks.peers import torch_peers
    from gpt1_jax.data.tokenizers import load_tokenizer

    newline = load_tokenizer(flags.run / "tokenizer").newline_id
    model = HFLM(
        str(flags.exported),
        device="cuda" if torch.cuda.is_available() else "cpu",
        dtype=dtype,
        batch_size=size,
        prefix_token_id=newline,
    )
    return _trainer(model, torch_peers.device_name(), torch_peers.peak_bytes)


def _trainer(model: Any, device: str, peak_bytes: Callable[[], int | None]) -> Trainer:
    from lm_eval.api.instance import Instance

    def put(sentences: list[str]) -> list[Any]:
        return [
            Instance("loglikelihood", {}, ("", text), number)
            for number, text in enumerate(sentences)
        ]

    def step(requests: list[Any]) -> float:
        answers = model.loglikelihood(requests, disable_tqdm=True)
        return sum(log_prob for log_prob, _ in answers) / len(answers)

    return Trainer(put, step, lambda: None, device, peak_bytes)


def export(run: Path, folder: Path) -> Path:
    """Exports a run folder for transformers."""
    from benchmarks.paper_model import load_config
    from gpt1_jax.config import load
    from gpt1_jax.jobs import convert

    config = load_config("convert", "huggingface")
    config.init_from, config.step = str(run), "newest"
    convert.run(load(config.to_dict()), str(folder))
    return folder


def summarise(results: dict[str, Any], flags: argparse.Namespace) -> None:
    """Adds rates and ratios, in place."""
    harness.compare(results, lambda name: VARIANTS[name].is_peer)
    number = len(next(draw_sentences(flags)))
    for result in results.values():
        result["sentences_per_second"] = number / result["median_seconds"]


def table(results: Mapping[str, Any]) -> str:
    """One line for each variant."""
    header = (
        "variant",
        "sentences/s",
        "speed vs the fastest peer",
        "nats a sentence",
        "first call, s",
        "peak, GiB",
    )

    def cells(name: str, r: Mapping[str, Any]) -> list[str]:
        ratio = r["speed_vs_best_torch"]
        return [
            name,
            f"{r['sentences_per_second']:,.1f}",
            f"{ratio:.2f}" if ratio else "-",
            f"{-r['loss']:.4f}",
            f"{r['first_step_seconds']:.1f}",
            f"{r['peak_bytes'] / 2**30:.2f}",
        ]

    return harness.markdown(header, [cells(*item) for item in results.items()])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("sentences", type=Path, help="text, JSON lines, or a folder")
    parser.add_argument("--limit", type=count, default=2000, help="sentences at most")
    parser.add_argument("--rounds", type=count, default=3, help="turns of each variant")
    names, all_names = some_of(VARIANTS), ",".join(VARIANTS)
    parser.add_argument("--variants", type=names, default=all_names, help="comma list")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments, argparse.Namespace(steps=1, warmup=1))


def main(arguments: Sequence[str]) -> None:
    """Measures, prints the table, writes the JSON file."""
    flags = parse(arguments)
    known = {str(flags.run): "RUN", str(flags.sentences): "SENTENCES"}
    shown = [known.get(argument, argument) for argument in arguments]
    record = harness.describe("peers.eval_harness", shown)
    names = harness.runnable(VARIANTS, flags.variants)
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        flags.exported = export(flags.run, Path(folder) / "exported")
        results = harness.measure({name: VARIANTS[name] for name in names}, flags)
    summarise(results, flags)
    print(table(results))
    for name in ("exported", "run", "sentences"):  # paths of one machine
        delattr(flags, name)
    harness.finish(record, flags, names, results, doubts(results))


def doubts(results: Mapping[str, Any]) -> list[str]:
    """Complaints if variants ran on different devices or scored differently."""
    means = [result["loss"] for result in results.values()]
    apart = max(means) - min(means)
    complaint = [f"log-likelihoods differ by {apart:.2g} nats on average"]
    return harness.different_devices(results.values()) + complaint * (apart > 1e-3)


if __name__ == "__main__":
    main(sys.argv[1:])
