"""Text to token ids: this package's tokenizers beside those of other programs.

    python -m benchmarks.peers.prepare_text --texts='books/*.txt' [--megabytes=8.9]
        [--openai=model] [--variants=sentencepiece,tokenizers] [--output=FILE]

Each turn is a new process, which encodes the same text on one core. What counts is its
CPU time, as other jobs may share the machine, without imports. `sentencepiece`,
`tokenizers` and `datasets` train their tokenizer first, of `--vocab_size` entries;
`datasets` then does as nanoGPT does: `Dataset.map`, and ids to a file of uint16.
`gpt1` and `transformers` read OpenAI's vocabulary in the folder `--openai`;
`transformers` leaves out ftfy and spaCy, so its ids differ.
"""

import argparse
import concurrent.futures
import glob
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks import harness
from gpt1_jax.data.documents import cut_blocks
from gpt1_jax.data.text import clean

Encode = Callable[[list[str]], int]  # blocks of text; the number of ids


def prepare_gpt1(flags: argparse.Namespace) -> Encode:
    from gpt1_jax.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(flags.openai)
    return lambda blocks: sum(len(tokenizer.encode(block)) for block in blocks)


def prepare_transformers(flags: argparse.Namespace) -> Encode:
    from transformers import OpenAIGPTTokenizer

    names = {"encoder_bpe_40000.json": "vocab.json", "vocab_40000.bpe": "merges.txt"}
    with tempfile.TemporaryDirectory() as folder:
        for openais, theirs in names.items():
            shutil.copyfile(Path(flags.openai, openais), Path(folder, theirs))
        rust = OpenAIGPTTokenizer.from_pretrained(folder).backend_tokenizer
    return lambda blocks: sum(
        len(each.ids)
        for block in blocks
        for each in rust.encode_batch(block.split("\n"))
    )


def prepare_sentencepiece(flags: argparse.Namespace) -> Encode:
    from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer

    def encode(blocks: list[str]) -> int:
        lines = (line for block in blocks for line in block.split("\n"))
        tokenizer = SentencePieceTokenizer.train(lines, flags.vocab_size, True)
        return sum(len(tokenizer.encode(block)) for block in blocks)

    return encode


def prepare_tokenizers(flags: argparse.Namespace) -> Encode:
    def encode(blocks: list[str]) -> int:
        rust = _train_rust(blocks, flags.vocab_size)
        lines = (line for block in blocks for line in block.split("\n"))
        return sum(len(each.ids) for each in rust.encode_batch(list(lines)))

    return encode


def prepare_datasets(flags: argparse.Namespace) -> Encode:
    import datasets

    datasets.disable_progress_bars()

    def encode(blocks: list[str]) -> int:
        rust = _train_rust(blocks, flags.vocab_size)
        lines = [line for block in blocks for line in block.split("\n")]
        with tempfile.TemporaryDirectory() as folder:
            rows = datasets.Dataset.from_dict({"text": lines}).map(
                lambda row: {"ids": [e.ids for e in rust.encode_batch(row["text"])]},
                batched=True,
                remove_columns=["text"],
                cache_file_name=f"{folder}/ids.arrow",
            )
            columns = (
                np.concatenate(rows[i : i + 1000]["ids"])
                for i in range(0, len(rows), 1000)
            )
            ids = np.concatenate([each.astype(np.uint16) for each in columns])
            ids.tofile(f"{folder}/train.bin")
        return len(ids)

    return encode


def _train_rust(blocks: list[str], vocab_size: int):
    import tokenizers

    rust = tokenizers.Tokenizer(tokenizers.models.BPE())
    rust.normalizer = tokenizers.normalizers.Lowercase()
    rust.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False)
    rust.train_from_iterator((line for b in blocks for line in b.split("\n")), trainer)
    return rust


VARIANTS = {
    "gpt1": prepare_gpt1,
    "transformers": prepare_transformers,
    "sentencepiece": prepare_sentencepiece,
    "tokenizers": prepare_tokenizers,
    "datasets": prepare_datasets,
}


def read_blocks(flags: argparse.Namespace) -> list[str]:
    """Cleaned blocks of the first `--megabytes` of the files, in order of names."""
    blocks, left = [], flags.megabytes * 1e6
    for path in sorted(glob.glob(flags.texts)):
        for block in cut_blocks([Path(path).read_text("utf-8")]):
            if left > 0:
                blocks.append(clean(block[: int(left)]))
                left -= len(block)
    return blocks


def run_once(name: str, flags: argparse.Namespace) -> dict[str, float]:
    """CPU seconds of one variant in this process, and the number of ids."""
    blocks = read_blocks(flags)
    encode = VARIANTS[name](flags)
    began = time.process_time()
    ids = encode(blocks)
    return {"seconds": time.process_time() - began, "ids": ids}


def main(arguments: Sequence[str]) -> None:
    """Measures in turns and prints a table."""
    flags = parse(arguments)
    if not read_blocks(flags):
        sys.exit(f"prepare_text: no text in --texts={flags.texts!r}")
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    record = harness.describe("peers.prepare_text", arguments)
    results: dict = {name: {"seconds": []} for name in flags.variants}
    for _ in range(flags.rounds):
        for name, result in results.items():
            context = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, context) as process:
                reply = process.submit(run_once, name, flags).result()
            result["seconds"].append(reply["seconds"])
            result["ids"] = reply["ids"]
    size = sum(len(block.encode()) for block in read_blocks(flags)) / 1e6
    rows = []
    for name, result in results.items():
        result["median_seconds"] = median = statistics.median(result["seconds"])
        least = min(result["seconds"])
        cells = (
            f"{median:.2f}",
            f"{least:.2f}",
            f"{size / median:.2f}",
            f"{result['ids']:,}",
        )
        rows.append((name, *cells))
    header = "variant", "median CPU s", "least", "MB per CPU s", "ids"
    print(harness.markdown(header, rows))
    harness.finish(record, flags, list(results), results, [])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", required=True, help="pattern of text files")
    parser.add_argument("--megabytes", type=float, default=8.9, help="text to encode")
    parser.add_argument("--openai", help="folder of OpenAI's vocabulary")
    parser.add_argument("--vocab_size", type=harness.count, default=40_478)
    parser.add_argument("--rounds", type=harness.count, default=3, help="turns of each")
    parser.add_argument(
        "--variants", type=harness.some_of(VARIANTS), default=",".join(VARIANTS)
    )
    parser.add_argument("--output", type=Path, help="JSON file to write")
    flags = parser.parse_args(arguments)
    if not flags.openai and {"gpt1", "transformers"} & set(flags.variants):
        parser.error("gpt1 and transformers need --openai=FOLDER; or name --variants")
    return flags


if __name__ == "__main__":
    main(sys.argv[1:])
