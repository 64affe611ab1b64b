"""docs/interventions.md: its examples as printed, its tables, and what it says."""

import functools
import re

import jax
import numpy as np
import pytest
from tiny_models import LSTM, drawn_params, flat_params, random_tokens
from tiny_run import ROOT, load_config, tiny_overrides
from tiny_tasks import read_lines

from gpt1_jax import config as config_lib
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.interop.run_folder import save_params
from gpt1_jax.model import interventions

PAGE = (ROOT / "docs" / "interventions.md").read_text()
CALLS, _, REST = PAGE.partition("\n## Three examples\n")
EXAMPLES, _, STUDY = REST.partition("\n## The study\n")
SIZES = {"num_layers": 3, "num_heads": 4, "embed_dim": 16, "mlp_dim": 64}


def blocks(text):
    return re.findall(r"(?ms)^```python\n(.*?)^```$", text)


@pytest.fixture(scope="module")
def run_folder(corpus_dir, made_once):
    """A model of three layers that reads 128 tokens, and knows the words of the page.

    It is not trained; its matrices are so large that every activation matters.
    """
    texts = re.findall(r'"([a-z ,.]+)"', "".join(blocks(CALLS + EXAMPLES)))
    tokenizer = SentencePieceTokenizer.train(texts * 20, 500)
    sizes = {f"model.{name}": size for name, size in SIZES.items()}
    tiny = tiny_overrides(corpus_dir) | sizes | {"model.max_seq_len": 128}
    config = config_lib.load(load_config(**tiny).to_dict())
    params = drawn_params(config.model.with_vocab_size(tokenizer.vocab_size))
    params = jax.tree.map(lambda x: 10 * x if x.ndim == 2 else x, params)
    return made_once(
        "of_three_layers",
        lambda folder: save_params(str(folder), params, tokenizer, config),
    )


@pytest.fixture
def here(run_folder, tmp_path, monkeypatch):
    """A working folder with the runs that the page names."""
    (tmp_path / "runs" / "pretrain").mkdir(parents=True)
    for name in ("quickstart", "day"):
        (tmp_path / "runs" / "pretrain" / name).symlink_to(run_folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_calls_run_one_after_another(here, capsys, monkeypatch):
    """Passes are compiled; model/test_interventions has one that is not."""
    forward, names = interventions.forward, {}

    def compiled(config, params, *arguments, **edits):
        return jax.jit(lambda p: forward(config, p, *arguments, **edits))(params)

    monkeypatch.setattr(interventions, "forward", compiled)
    for number, code in enumerate(blocks(CALLS)):
        exec(compile(code, f"block {number}", "exec"), names)
    said = capsys.readouterr().out
    first, second, last = (f"'h_{layer}/out': (2, 5, 16)" for layer in range(3))
    recorded = [first, second, "'h_2/attn/probs': (2, 4, 5, 5)", last]
    assert f"{{{', '.join(recorded)}}}" in said
    assert f"{names['gradient'].shape} (4, 500)" in said
    found, j = names["found"], names["j"]
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-4)
    close(names["query"], found["h_1/attn/q"][:, :, j])
    close(names["whole"], found["h_1/attn/out"])
    first, second, *_ = names["ablated"]  # without the first head, and so on
    assert not np.allclose(first, second)


def run_example(heading, capsys, usual="", smaller=""):
    """The names of a block that needs no other, and what it prints."""
    text = EXAMPLES.partition(f"\n### {heading}\n")[2].partition("\n##")[0]
    (code,) = blocks(text)
    assert usual in code
    exec(compile(code.replace(usual, smaller), heading, "exec"), names := {})
    return names, capsys.readouterr().out


def test_induction_heads_are_scored(here, capsys):
    names, said = run_example("An induction head", capsys)
    config, tokens, length = names["config"], names["twice"], names["length"]
    attention = jax.jit(interventions.attention, static_argnums=0)
    maps = attention(config, names["model"].params, tokens)
    layer, head = divmod(int(names["best"][0]), 4)
    places = np.arange(length, 2 * length)
    by_hand = np.mean(maps[layer][:, head, places, places - length + 1])
    np.testing.assert_allclose(names["induction"][layer, head], by_hand, rtol=1e-5)
    assert f"h_{layer}, head {head}: {by_hand:.3f}" in said


def test_states_are_patched_by_layer_and_position(here, capsys):
    _, said = run_example("Number agreement", capsys)
    lines = [line.split() for line in said.splitlines()]
    assert [line[0] for line in lines] == ["embedding", "h_0/out", "h_1/out", "h_2/out"]
    moved = np.asarray([[float(x) for x in line[1:]] for line in lines])
    assert moved[0].tolist() == [0, 1, 0, 0, 0, 0]  # only the noun differs
    assert moved[-1].tolist() == [0, 0, 0, 0, 0, 1]  # only the last state is read
    assert len(np.unique(moved)) > 4


def test_samples_are_steered(here, capsys):
    sizes = "count=32, length=32", "count=4, length=12"
    names, said = run_example("Steering a sample", capsys, *sizes)
    said = {line[:9].strip(): line[20:] for line in said.splitlines()}
    assert [*said] == ["-2", "-1", "+0", "+1", "+2", "random -1", "random +1"]
    assert said["-2"] != said["+0"] != said["+2"]
    pull, other = (np.linalg.norm(names[each]) for each in ("pull", "other"))
    np.testing.assert_allclose(pull, other, rtol=1e-6)


def test_prompts_are_written_for_the_study(here):
    (code,) = blocks(STUDY)
    exec(compile(code, "prompts", "exec"), {})
    rows = read_lines(here / "agreement.jsonl")
    assert len(rows) == 56 and {row["good"] for row in rows} == {"was", "were"}
    for row in rows:
        clean, corrupted = (row[name].split() for name in ("clean", "corrupted"))
        assert [a == b for a, b in zip(clean, corrupted, strict=True)][:2] == [1, 0]


LETTERS = dict(N=2, T=9, D=32, H=2, K=16, F=128, V=97, U=24, P=16)


def listed(heading, kind, depth):
    """The shapes in a table by name, for a model of this kind."""
    table, found = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0], {}
    for row in re.findall(r"(?m)^\| `(.+) \|$", table):
        path, shapes, kinds = row.split(" | ")[:3]
        folder, _, names = path.strip("}`").partition("{")
        shapes = re.findall(r"\[(.+?)\]", shapes)
        for name, shape in zip(names.split(","), shapes, strict=True):
            sizes = re.findall(r"(\d?) ?(\w)(?:, |$)", shape)
            shape = tuple(int(times or 1) * LETTERS[letter] for times, letter in sizes)
            for layer in range(depth * (kind in kinds)):
                found[(folder + name).replace("h_i", f"h_{layer}")] = shape
    return found


@pytest.mark.parametrize(("kind", "depth"), [("Transformer", 2), ("LSTM", 1)])
def test_parameters_and_activations_are_those_of_the_lists(
    kind, depth, tiny_model_config
):
    config = tiny_model_config(**(LSTM if kind == "LSTM" else {}))
    params = drawn_params(config)
    shapes = {path: leaf.shape for path, leaf in flat_params(params).items()}
    assert listed("Parameters", kind, depth) == shapes
    tokens = random_tokens((2, 9))
    recorded = jax.eval_shape(
        lambda params: interventions.forward(config, params, tokens, ["*"])[1], params
    )
    shapes = {name: x.shape for name, x in recorded.items()}
    assert listed("Names", kind, depth) == shapes
