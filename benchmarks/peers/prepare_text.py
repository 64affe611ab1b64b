"""Text to token ids: this package's tokenizers beside those of other programs.

    python -m benchmarks.peers.prepare_text --texts='books/*.txt' [--megabytes=8.9]
        [--openai=model] [--variants=sentencepiece,tokenizers] [--output=FILE]
    python -m benchmarks.peers.prepare_text --texts='books/*.txt' --cores=2
    python -m benchmarks.peers.prepare_text --texts='books/*.txt' --formats=plain,zst

Each turn is a new process, which encodes the same text on one core. What counts is its
CPU time, as other jobs may share the machine, without imports; with several `--cores`,
each variant uses them in its own way, and what counts is the time that it takes, on a
machine that does nothing else. `sentencepiece`,
`tokenizers` and `datasets` train their tokenizer first, of `--vocab_size` entries;
`datasets` then does as nanoGPT does: `Dataset.map`, and ids to a file of uint16.
`gpt1` and `transformers` read OpenAI's vocabulary in the folder `--openai`;
`transformers` leaves out ftfy and spaCy, so its ids differ.

With `--formats`, the text is written to a file of each format instead, in records of
about 3,000 characters, and prepared with a SentencePiece tokenizer trained on it, in
one process; another process only reads the file. Here imports count, as a format's
library is one of them.
"""

import argparse
import bz2
import concurrent.futures
import csv
import glob
import gzip
import io
import json
import lzma
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.paper_model import load_config
from gpt1_jax.config import load
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.data.encoder import Block, encode_blocks
from gpt1_jax.data.named_texts import cut_blocks
from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import Tokenizer

Encode = Callable[[list[str]], int]  # blocks of text; the number of ids


def prepare_gpt1(flags: argparse.Namespace) -> Encode:
    from gpt1_jax.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(flags.openai)
    return lambda blocks: _encode(tokenizer, blocks, flags.cores)


def _encode(tokenizer: Tokenizer, blocks: list[str], cores: int) -> int:
    """The number of ids, made as a corpus is prepared: one process for each core."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        found = encode_blocks((Block("", "", text) for text in blocks), folder, cores)
        return sum(len(encoded.ids) for _, encoded in found)


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
        return _encode(tokenizer, blocks, flags.cores)

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
                num_proc=flags.cores if flags.cores > 1 else None,
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
    return list(map(clean, _raw_blocks(flags)))


def _raw_blocks(flags: argparse.Namespace) -> Iterator[str]:
    left = flags.megabytes * 1e6
    for path in sorted(glob.glob(flags.texts)):
        for block in cut_blocks([Path(path).read_text("utf-8")]):
            if left > 0:
                yield block[: int(left)]
                left -= len(block)


def run_once(name: str, flags: argparse.Namespace) -> dict[str, float]:
    """Seconds of one variant, of CPU time on one core, and the number of ids."""
    blocks = read_blocks(flags)
    encode = VARIANTS[name](flags)
    clock = time.process_time if flags.cores == 1 else time.perf_counter
    began = clock()
    ids = encode(blocks)
    return {"seconds": clock() - began, "ids": ids}


# --- the same text in files of several formats --------------------------------

_RECORD_CHARACTERS = 3000  # of a JSON object or a row, as of a web page


def _plain(rows: list[str]) -> bytes:
    return "".join(row + "\n" for row in rows).encode()


def _zst(rows: list[str]) -> bytes:
    from backports import zstd

    return zstd.compress(_plain(rows))


def _json(rows: list[str]) -> bytes:
    return json.dumps([{"text": row} for row in rows], ensure_ascii=False).encode()


def _json_lines(rows: list[str]) -> bytes:
    objects = (json.dumps({"text": row}, ensure_ascii=False) for row in rows)
    return "".join(each + "\n" for each in objects).encode()


def _csv(rows: list[str]) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("text",), *((row,) for row in rows)])
    return file.getvalue().encode()


def _parquet(rows: list[str]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()  # in row groups as `datasets` writes them
    parquet.write_table(pyarrow.table({"text": rows}), file, row_group_size=1000)
    return file.getvalue()


# The name of the file, and what makes its content of records.
FORMATS: dict[str, tuple[str, Callable[[list[str]], bytes]]] = {
    "plain": ("text.txt", _plain),
    "gz": ("text.txt.gz", lambda rows: gzip.compress(_plain(rows))),
    "bz2": ("text.txt.bz2", lambda rows: bz2.compress(_plain(rows))),
    "xz": ("text.txt.xz", lambda rows: lzma.compress(_plain(rows))),
    "zst": ("text.txt.zst", _zst),
    "jsonl": ("text.jsonl", _json_lines),
    "json": ("text.json", _json),
    "csv": ("text.csv", _csv),
    "parquet": ("text.parquet", _parquet),
}


def write_files(folder: Path, flags: argparse.Namespace) -> dict[str, Any]:
    """Writes the text in each of `--formats`; returns the sizes, and of the text."""
    rows, row = [], ""
    for block in _raw_blocks(flags):
        for line in block.splitlines(keepends=True):
            row += line
            if len(row) > _RECORD_CHARACTERS:
                rows.append(row.removesuffix("\n"))
                row = ""
    rows.append(row.removesuffix("\n"))
    sizes = {}
    for form in flags.formats:
        name, write = FORMATS[form]
        sizes[form] = (folder / name).write_bytes(write(rows))
    return {"text_bytes": len(_plain(rows)), "file_bytes": sizes}


def read_once(path: Path, folder: Path, flags: argparse.Namespace) -> dict[str, float]:
    """Only reads a file, as `prepare_once` does twice."""
    from gpt1_jax.data.named_texts import texts_in_files

    del folder, flags
    before = _peak_bytes()
    (document,) = texts_in_files(str(path), "--texts", "text")
    reply = _measured(document.read_digest)
    reply["peak_bytes"] -= before
    return reply


def prepare_once(
    path: Path, folder: Path, flags: argparse.Namespace
) -> dict[str, float]:
    """Prepares a file: trains a tokenizer on it, then tokenises it."""
    from gpt1_jax.data.corpus import prepare_corpus

    values = load_config("pretrain", "small")
    data = {"train": str(path), "cache_dir": str(folder), "num_workers": 1}
    values.data.update(source="text", **data)
    values.tokenizer.vocab_size = flags.vocab_size
    config: PretrainConfig = load(values.to_dict())
    ids = []

    def prepare() -> None:
        corpus, _ = prepare_corpus(config.data, config.tokenizer, progress=False)
        ids.append(corpus.train.tokens + corpus.valid.tokens)

    return {**_measured(prepare), "ids": ids[0]}


def _measured(work: Callable[[], object]) -> dict[str, float]:
    """CPU seconds, the system's included, and the peak of resident memory so far."""
    began = time.process_time()
    work()
    return {"seconds": time.process_time() - began, "peak_bytes": _peak_bytes()}


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure_formats(flags: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Reads and prepares each file in turns; prints a table."""
    results: dict[str, dict[str, Any]] = {
        form: {"read_seconds": [], "seconds": []} for form in flags.formats
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = _in_new_process(write_files, folder, flags)
        for turn in range(flags.rounds):
            for form, result in results.items():
                path = folder / FORMATS[form][0]
                read = _in_new_process(read_once, path, folder, flags)
                cache = folder / f"{form}-{turn}"
                made = _in_new_process(prepare_once, path, cache, flags)
                result["read_seconds"].append(read["seconds"])
                result["seconds"].append(made["seconds"])
                result["read_bytes"] = read["peak_bytes"]
                result["peak_bytes"], result["ids"] = made["peak_bytes"], made["ids"]
    size = written["text_bytes"] / 1e6
    rows = []
    for form, result in results.items():
        result["text_bytes"] = written["text_bytes"]
        result["file_bytes"] = written["file_bytes"][form]
        for key in ("read_seconds", "seconds"):
            result[f"median_{key}"] = statistics.median(result[key])
        median = result["median_seconds"]
        beside = median / results[flags.formats[0]]["median_seconds"]
        cells = (
            f"{result['file_bytes'] / 1e6:.1f}",
            f"{size / result['median_read_seconds']:.0f}",
            f"{result['read_bytes'] / 1e6:.0f}",
            f"{size / median:.2f}",
            f"{beside:.3f}",
            f"{result['peak_bytes'] / 1e6:.0f}",
            f"{result['ids']:,}",
        )
        rows.append((form, *cells))
    header = (
        *("format", "MB on disk", "read alone, MB per CPU s", "MB of memory for it"),
        *("prepared, MB per CPU s", f"CPU s beside {flags.formats[0]}"),
        *("peak MB", "ids"),
    )
    print(harness.markdown(header, rows))
    return results


def _in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as process:
        return process.submit(function, *arguments).result()


def main(arguments: Sequence[str]) -> None:
    """Measures in turns and prints a table."""
    flags = parse(arguments)
    if not any(_raw_blocks(flags)):
        sys.exit(f"prepare_text: no text in --texts={flags.texts!r}")
    parallel = "true" if flags.cores > 1 else "false"
    os.environ.update(
        RAYON_NUM_THREADS=f"{flags.cores}", TOKENIZERS_PARALLELISM=parallel
    )
    record = harness.describe("peers.prepare_text", arguments)
    if flags.formats:
        results = measure_formats(flags)
        ids = {result["ids"] for result in results.values()}
        doubts = [f"the formats give different numbers of ids: {ids}"] * (len(ids) > 1)
        harness.finish(record, flags, list(results), results, doubts)
        return
    results = {name: {"seconds": []} for name in flags.variants}
    for _ in range(flags.rounds):
        for name, result in results.items():
            reply = _in_new_process(run_once, name, flags)
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
    seconds = "CPU s" if flags.cores == 1 else "s"
    header = "variant", f"median {seconds}", "least", f"MB per {seconds}", "ids"
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
    parser.add_argument("--cores", type=harness.count, default=1, help="for each")
    parser.add_argument(
        "--variants", type=harness.some_of(VARIANTS), default=",".join(VARIANTS)
    )
    parser.add_argument(
        "--formats",
        type=harness.some_of(FORMATS),
        default=(),
        help="prepare files of these formats instead; the first is compared with",
    )
    parser.add_argument("--output", type=Path, help="JSON file to write")
    flags = parser.parse_args(arguments)
    if flags.formats:
        flags.variants = []
    if not flags.openai and {"gpt1", "transformers"} & set(flags.variants):
        parser.error("gpt1 and transformers need --openai=FOLDER; or name --variants")
    return flags


if __name__ == "__main__":
    main(sys.argv[1:])
