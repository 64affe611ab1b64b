"""The interventions job, as its user runs it; what it shares with others is theirs."""

import collections
import json
import random

import numpy as np
import pandas as pd
import pytest
from babylm_data import WORDS
from tiny_tasks import read_lines, write_lines

import gpt1_jax
from gpt1_jax.errors import UserError
from gpt1_jax.model.interventions import zero
from gpt1_jax.report.study_scores import long_table
from gpt1_jax.studies.interventions import job
from gpt1_jax.studies.interventions.table import chosen_heads

PARADIGMS = ("ellipsis_n_bar_1", "ellipsis_n_bar_2")


def phrase(rng, length):
    return " ".join(rng.choices(WORDS, k=length))


@pytest.fixture(scope="module")
def blimp(made_once):
    """Made-up pairs of two paradigms, whose sentences differ in their ends."""

    def make(folder):
        rng = random.Random(0)
        for name in PARADIGMS:
            rows = []
            for number in range(3):
                begin = phrase(rng, 4)
                good, bad = f"{begin} abcd", f"{begin} {phrase(rng, 4)}"
                rows.append(
                    dict(sentence_good=good, sentence_bad=bad, pairID=str(number))
                )
            write_lines(folder / f"{name}.jsonl", rows)

    return made_once("intervened", make)


@pytest.fixture
def study(run_job, blimp):
    """A function from values to what the job prints."""

    def run(**values):
        data = {"data__source": "official", "data__dir": str(blimp)}
        return run_job("interventions", "ellipsis", **data, **values)

    return run


def results(folder):
    return json.loads((folder / "results.json").read_text())["runs"]


def differences(model, pairs, edits=None):
    """D of pairs of sentences, each of which is read after a newline."""
    texts = [f"\n{sentence}" for pair in pairs for sentence in pair]
    found = model.forward(texts, edits=edits)
    logits = found.logits - found.logits.max(axis=-1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    ids = found.ids[:, 1:, None]  # below 0 behind the end of a text
    of_tokens = np.take_along_axis(log_probs[:, :-1], np.maximum(ids, 0), axis=-1)
    scores = np.where(ids < 0, 0, of_tokens).sum(axis=(1, 2))
    return scores[::2] - scores[1::2]


def test_effects_are_those_of_the_notebook_model(study, pretrained, blimp, tmp_path):
    study(method="zero")
    model = gpt1_jax.load(str(pretrained))
    lines = read_lines(tmp_path / "out/predictions/run/12/ellipsis.jsonl")
    read = [line["text"] for line in lines]
    rows = [row for name in PARADIGMS for row in read_lines(blimp / f"{name}.jsonl")]
    assert sorted(read) == sorted([r["sentence_good"], r["sentence_bad"]] for r in rows)
    base = differences(model, read)
    edited = [
        differences(model, read, {"h_0/attn/heads": zero(heads=head)})
        for head in (0, 1)
    ]
    effects = np.subtract(edited, base).T
    for line, expected, of_heads in zip(lines, base, effects, strict=True):
        assert line["base"] == line["clean"] == pytest.approx(expected, abs=1e-4)
        np.testing.assert_allclose(line["heads"], [of_heads], atol=1e-4)
    (run,) = results(tmp_path / "out")
    rows = run["checkpoints"][0]["tasks"]["ellipsis"]["effects"]
    found = {(row["kind"], row["layer"], row["number"]): row for row in rows}
    for head in range(2):
        row, own = found["head", 0, head], effects[:, head]
        expected = {
            "n": 6,
            "effect": own.mean(),
            "standard_error": own.std() / 6**0.5,
            "chosen": own[::2].mean(),
            "held_out": own[1::2].mean(),
        }
        assert {name: row[name] for name in expected} == pytest.approx(
            expected, abs=1e-5
        )
    counts = {"base": 1, "clean": 1, "lens": 2, "attention": 1, "mlp": 1}
    counts |= {"head": 2, "position": 8}
    assert collections.Counter(row["kind"] for row in rows) == counts


@pytest.mark.usefixtures("real_figures")
def test_tables_figure_and_csv_are_written_over_steps(study, tmp_path):
    out = study(step="all", method="zero")
    table = (tmp_path / "out/results.md").read_text()
    assert table in out and "zeros replace what the component gives" in table
    assert "| effect | step 8 | step 12 |" in table
    assert "| layer | attention | MLP | lens |" in table
    assert (tmp_path / "out/plots/interventions.png").stat().st_size > 20_000
    csv = pd.read_csv(tmp_path / "out/plots/interventions.csv")
    runs = results(tmp_path / "out")
    effects = [
        row["effect"]
        for checkpoint in runs[0]["checkpoints"]
        for row in checkpoint["tasks"]["ellipsis"]["effects"]
    ]
    assert list(csv["step"].unique()) == [8, 12]
    np.testing.assert_allclose(csv["score"], effects, atol=1e-6)
    (first, _) = chosen_heads(long_table(runs, job.STUDY.rows), 2)
    lines = [line for line in table.splitlines() if line.startswith("| head ")]
    assert lines[0].startswith(f"| head {first[0]}.{first[1]} |")


PROMPT = dict(clean="a cd", corrupted="b cd", sentence_good="gh", sentence_bad="ij")
PATCH = {"method": "patch", "data__context": "clean", "data__corrupted": "corrupted"}
NO_POSITIONS = {"positions": 0}


def test_prompts_are_patched_from_clean_ones(run_own_pairs, tmp_path, pretrained):
    rows = [PROMPT, {**PROMPT, "clean": "b cd"}]
    run_own_pairs("interventions", rows, **PATCH, **NO_POSITIONS)
    model = gpt1_jax.load(str(pretrained))
    lines = read_lines(tmp_path / "out/predictions/run/12/pairs.jsonl")
    prompts = ("b cd", "a cd", "b cd", "b cd")
    found = differences(model, [(f"{each} gh", f"{each} ij") for each in prompts])
    assert [[line["base"], line["clean"]] for line in lines] == [
        pytest.approx(pair, abs=1e-4) for pair in found.reshape(2, 2)
    ]
    np.testing.assert_allclose(lines[1]["heads"], 0, atol=1e-5)  # the same prompt
    assert np.abs(lines[0]["heads"]).max() > 1e-5
    assert "after the clean prompt" in (tmp_path / "out/results.md").read_text()
    labelled = [{**PROMPT, "best": number} for number in (0, 1)]
    values = {"data__good": "best", **NO_POSITIONS}
    run_own_pairs("interventions", labelled, to="labelled", **values)
    first, second = read_lines(tmp_path / "labelled/predictions/run/12/pairs.jsonl")
    assert first["base"] == pytest.approx(-second["base"], abs=1e-5)
    table = (tmp_path / "labelled/results.md").read_text()
    assert "its mean over all tokens replaces what the component gives" in table


@pytest.mark.parametrize(
    ("rows", "values", "message"),
    [
        ([{**PROMPT, "corrupted": "b"}], PATCH, r"jsonl:1: the clean prompt has"),
        ([{**PROMPT, "sentence_bad": "ij " * 60}], {}, "longest of .* up to 40 tokens"),
        ([{"s": ["ab", "cd", "ef"]}], {"data__sentences": ("s",)}, ":1: 3 sentences"),
        ([PROMPT], {"method": "patch"}, "method='patch' does not go with .*corrupted"),
        ([PROMPT], {**PATCH, "method": "zero"}, "config.method='zero' does not go"),
        ([PROMPT], {**PATCH, "data__context": ""}, r"name that of the clean ones"),
        ([PROMPT], {"init_from": "lstm"}, "which has one layer and no heads"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused(
    run_own_pairs, pretrained_lstm, tmp_path, rows, values, message
):
    if "init_from" in values:
        values = {"init_from": str(pretrained_lstm)}
    with pytest.raises(UserError, match=message):
        run_own_pairs("interventions", rows, **values)
    assert not (tmp_path / "out").exists()
