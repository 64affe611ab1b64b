"""Kinds of `openai-gpt` folders: which are read, and how far the logits agree.

    python -m benchmarks.peers.import_matrix

Each kind is written by transformers (or as it or PyTorch once wrote it), converted by
the job `convert`, and run on the same tokens here and by transformers. Prints a table,
which docs/results.md sums up. Needs the extra `openai`, torch and transformers.
"""

import contextlib
import importlib.util
import io
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, models

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import convert
from gpt1_jax.model import language_model
from gpt1_jax.report.markdown import markdown_table
from gpt1_jax.runs.open import open_run

LETTERS = [chr(ord("a") + number) for number in range(26)]
SYMBOLS = ["<unk>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS), "\n</w>"]
SIZES = {"n_positions": 64, "n_embd": 64, "n_layer": 4, "n_head": 4}
ROOT = Path(__file__).parents[2]
Model = Any  # one of transformers' classes
Arrays = dict[str, np.ndarray]


def make(name: str = "OpenAIGPTLMHeadModel", **config: Any) -> Model:
    """A model with random parameters, the same each time, whose logits differ."""
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": len(SYMBOLS), "initializer_range": 0.15, **config}
    return getattr(transformers, name)(transformers.OpenAIGPTConfig(**sizes)).eval()


def saved(**options: Any) -> Callable[[Path], Model]:
    """As a class saves itself."""
    save = {key: options.pop(key) for key in ("max_shard_size",) if key in options}

    def write(folder: Path) -> Model:
        model = make(**options)
        model.save_pretrained(folder, **save)
        return model

    return write


def renamed(change: Callable[[str], str]) -> Callable[[Path], Model]:
    """With other names of the parameters."""

    def write(folder: Path) -> Model:
        model = make()
        model.save_pretrained(folder)
        file = folder / "model.safetensors"
        held = safetensors.numpy.load(file.read_bytes())
        file.write_bytes(
            safetensors.numpy.save({change(name): each for name, each in held.items()})
        )
        return model

    return write


def as_bin(parts: int) -> Callable[[Path], Model]:
    """As `pytorch_model.bin`, whole or in parts."""

    def write(folder: Path) -> Model:
        model = make()
        model.config.save_pretrained(folder)
        state = model.state_dict()
        names = [f"pytorch_model-{i + 1:05}-of-{parts:05}.bin" for i in range(parts)]
        names = names if parts > 1 else ["pytorch_model.bin"]
        place = {name: names[i % parts] for i, name in enumerate(state)}
        for file in names:
            held = {name: each for name, each in state.items() if place[name] == file}
            torch.save(held, folder / file)
        if parts > 1:
            index = json.dumps({"metadata": {}, "weight_map": place})
            (folder / "pytorch_model.bin.index.json").write_text(index)
        return model

    return write


def beside_parts(folder: Path) -> Model:
    """In one file, beside the parts of another model."""
    saved(initializer_range=0.1, max_shard_size="100KB")(folder)
    index = (folder / "model.safetensors.index.json").read_bytes()
    parts = {path: path.read_bytes() for path in folder.glob("model-*")}
    model = saved()(folder)  # which removes them
    for path, content in parts.items():
        path.write_bytes(content)
    (folder / "model.safetensors.index.json").write_bytes(index)
    load = transformers.OpenAIGPTLMHeadModel.from_pretrained
    assert load(folder).lm_head.weight.equal(model.lm_head.weight)
    return load(folder).eval()


def resized(rows: int) -> Callable[[Path], Model]:
    """With rows of the token embedding for which the tokenizer has no entries."""

    def write(folder: Path) -> Model:
        model = make()
        model.resize_token_embeddings(len(SYMBOLS) + rows, mean_resizing=False)
        model.save_pretrained(folder)
        return model

    return write


def with_lm_head_only(folder: Path) -> Model:
    """As safetensors' `save_model` writes it: one name for what is tied."""
    model = make()
    model.config.save_pretrained(folder)
    safetensors.torch.save_model(model, str(folder / "model.safetensors"))
    return model


def in_half(folder: Path) -> Model:
    """In bfloat16; transformers computes in float32 from the same values."""
    make().to(torch.bfloat16).save_pretrained(folder)
    cls = transformers.OpenAIGPTLMHeadModel
    return cls.from_pretrained(folder, dtype=torch.float32).eval()


def with_tokenizer_json(folder: Path) -> Model:
    """With `tokenizer.json` alone, as transformers 5 writes it."""
    model = saved()(folder)
    vocabulary = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    bpe = models.BPE(vocabulary, [], unk_token="<unk>", end_of_word_suffix="</w>")
    Tokenizer(bpe).save(str(folder / "tokenizer.json"))
    return model


def our_export(again: bool) -> Callable[[Path], Model]:
    """Exported by gpt1_jax, with a SentencePiece tokenizer, and perhaps saved again."""

    def write(folder: Path) -> Model:
        with tempfile.TemporaryDirectory() as place:
            ours = Path(place) / "ours"
            _export_ours(ours)
            load = transformers.AutoModelForCausalLM.from_pretrained
            model = load(ours, dtype=torch.float32).eval()
            if not again:
                shutil.copytree(ours, folder, dirs_exist_ok=True)
                return model
            model.save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(ours).save_pretrained(folder)
            return model

    return write


def _export_ours(target: Path) -> None:
    """A model for transformers, its tokenizer trained on the README."""
    with (
        tempfile.TemporaryDirectory() as place,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        text = Path(place) / "texts"
        text.mkdir()
        shutil.copy(ROOT / "README.md", text / "README.txt")
        config = gpt1_jax.defaults("pretrain:quickstart")
        config.update_from_flattened_dict(_small(str(text), place))
        gpt1_jax.pretrain(config, f"{place}/run")
        _convert(f"{place}/run", target, "huggingface")


def _small(text: str, cache: str) -> dict[str, Any]:
    return {
        "model.num_layers": 1,
        "model.embed_dim": 32,
        "model.mlp_dim": 128,
        "model.num_heads": 2,
        "model.max_seq_len": 64,
        "data.source": "text",
        "data.train": text,
        "data.cache_dir": cache,
        "tokenizer.vocab_size": 400,
        "train.num_steps": 2,
        "optimizer.warmup_steps": 1,
        "train.batch_size": 8,
        "log.tensorboard": False,
    }


_wrapped = re.compile(r"^transformer\.h\.")


def _in_2018(module: str) -> str:
    return "g" if module.startswith("ln") else "w"


KINDS: dict[str, Callable[[Path], Model]] = {
    "`model.safetensors`": saved(),
    "`model.safetensors` in parts": saved(max_shard_size="100KB"),
    "`model.safetensors` beside parts of another": beside_parts,
    "`pytorch_model.bin`": as_bin(1),
    "`pytorch_model.bin` in parts": as_bin(3),
    "bfloat16": in_half,
    "`OpenAIGPTModel`, without the output matrix": saved(name="OpenAIGPTModel"),
    "`OpenAIGPTDoubleHeadsModel`": saved(name="OpenAIGPTDoubleHeadsModel"),
    "`OpenAIGPTForSequenceClassification`": saved(
        name="OpenAIGPTForSequenceClassification"
    ),
    "three added tokens": resized(3),
    "vocabulary padded to a multiple of 64": resized(-len(SYMBOLS) % 64),
    "LayerNorm's `gamma` and `beta` (before 2020)": renamed(
        lambda name: re.sub(
            r"(ln_\d)\.(weight|bias)",
            lambda m: f"{m[1]}.{'gamma' if m[2] == 'weight' else 'beta'}",
            name,
        )
    ),
    "`.g`, `.b` and `.w` (2018)": renamed(
        lambda name: re.sub(
            r"((?:ln|c)_\w+)\.(weight|bias)",
            lambda m: f"{m[1]}.{_in_2018(m[1]) if m[2] == 'weight' else 'b'}",
            name,
        )
    ),
    "compiled (`_orig_mod.`)": renamed(lambda name: f"_orig_mod.{name}"),
    "wrapped (`module.`)": renamed(lambda name: f"module.{name}"),
    "layers compiled or wrapped": renamed(
        lambda name: _wrapped.sub("transformer.h._orig_mod.", name)
    ),
    "`lm_head.weight` alone (`save_model`)": with_lm_head_only,
    "`tokenizer.json` alone": with_tokenizer_json,
    "our own export": our_export(again=False),
    "our own export, saved again": our_export(again=True),
    "another activation (`afn`)": saved(afn="relu"),
    "another output matrix (`tie_word_embeddings`)": saved(tie_word_embeddings=False),
}


def _convert(origin: str | Path, target: str | Path, preset: str) -> str:
    """Runs the job; returns what it printed."""
    spec = importlib.util.spec_from_file_location("c", ROOT / "configs" / "convert.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    values = {**module.get_config(preset).to_dict(), "init_from": str(origin)}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        convert.run(config_lib.load(values), str(target))
    return printed.getvalue()


def logits(model: Model, tokens: np.ndarray) -> np.ndarray:
    """Logits of transformers: its own, or h_L W_e^T if the class has none."""
    body = getattr(model, "transformer", model)
    with torch.no_grad():
        hidden = body(torch.tensor(tokens).long()).last_hidden_state
        return (hidden @ body.tokens_embed.weight.T).numpy()


def try_kind(write: Callable[[Path], Model]) -> tuple[str, str]:
    """Whether a kind is read, or why not, and the largest difference of the logits."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "from"
        folder.mkdir()
        theirs = write(folder)
        if not any((folder / name).exists() for name in _TOKENIZERS):
            vocabulary = {symbol: number for number, symbol in enumerate(SYMBOLS)}
            (folder / "vocab.json").write_text(json.dumps(vocabulary))
            (folder / "merges.txt").write_text("#version: 0.2\n")
        try:
            printed = _convert(folder, f"{place}/run", "run")
        except (UserError, OSError) as error:
            first = re.split(r"(?<=[a-z])[.;] ", str(error).replace(f"{folder}", "…"))
            return f"refused: {first[0].rstrip('.')}", ""
        run = open_run(f"{place}/run")
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, run.model.vocab_size, (8, 64)).astype(np.int32)
        with jax.default_matmul_precision("float32"):
            output = language_model.apply(run.model, run.params, tokens)
            ours = np.asarray(language_model.logits(run.model, output))
        found = logits(theirs, tokens)[..., : run.model.vocab_size]
        notes = [line for line in printed.splitlines() if "left out" in line]
        said = "; ".join(re.sub(r", for which.*", "", note) for note in notes)
        return f"read{said and '. ' + said}", f"{np.abs(ours - found).max():.1e}"


_TOKENIZERS = ("gpt1_jax_tokenizer", "tokenizer.json")


def main() -> None:
    """Prints the table."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = []
    for kind, write in KINDS.items():
        rows.append([kind, *try_kind(write)])
        print(*rows[-1], sep=" | ", flush=True)
    header = ["folder", "here", "largest difference"]
    print("\n" + markdown_table(header, rows, text_columns=2))
    packages = {"transformers": transformers, "torch": torch, "jax": jax}
    print(", ".join(f"{name} {each.__version__}" for name, each in packages.items()))


if __name__ == "__main__":
    main()
