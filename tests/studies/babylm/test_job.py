"""BabyLM's evaluation, as a team runs it, on made-up data in its formats."""

import csv
import itertools
import json
import shutil

import numpy as np
import pandas as pd
import pytest
from babylm_data import write_evaluation_data
from broken_copies import edit_metadata
from etils import epath
from tiny_tasks import read_lines

import gpt1_jax
from gpt1_jax.errors import UserError
from gpt1_jax.runs.open import open_run
from gpt1_jax.studies.babylm import job as babylm
from gpt1_jax.studies.babylm import parts
from gpt1_jax.studies.babylm import scores as evaluation
from gpt1_jax.studies.babylm.finetuned import BABYLM_SIZES
from gpt1_jax.studies.babylm.parts import FULL, PARTS, load_part
from gpt1_jax.studies.blimp import PARADIGMS
from gpt1_jax.tasks.paper_tasks import TASKS


@pytest.fixture(scope="module")
def data(made_once):
    return made_once("evaluation_data", write_evaluation_data)


@pytest.fixture(scope="module")
def trained(pretrained, made_once):
    """A run whose two steps are kept as milestones of one and two thousand words."""

    def make(folder):
        shutil.copytree(pretrained, folder)
        for step, amount in ((8, 1000), (12, 2000)):
            kept = {"milestone": {"amount": amount, "unit": "words"}}
            edit_metadata(folder, step, lambda values, kept=kept: values.update(kept))

    return made_once("babylm-run", make)


@pytest.fixture
def evaluate(run_job, trained, data):
    """A function from values to what the job prints; its folder is `to`."""

    def run(**values):
        given = {"init_from": str(trained), "data__dir": str(data)}
        return run_job("babylm", "strict-small", **{**given, **values})

    return run


@pytest.fixture
def evaluated(evaluate, made_once, tmp_path):
    """A finished evaluation in the folder `out`, and what it printed."""

    def make(folder):
        said = evaluate(to="first")
        shutil.copytree(tmp_path / "first", folder / "out")
        (folder / "said").write_text(said)

    folder = made_once("babylm-evaluated", make)
    shutil.copytree(folder / "out", tmp_path / "out")
    return (folder / "said").read_text()


@pytest.fixture(scope="module")
def reads(trained, data):
    """`reads(part, chosen)`: items of a part, a scorer, and the notebook's model."""
    run, model = open_run(str(trained)), gpt1_jax.load(str(trained))
    scorer = evaluation.Scorer(run.model_in("float32"), run.tokenizer.vocab_size)

    def load(part, chosen=FULL):
        folder = epath.Path(data)
        items = load_part(PARTS[part], chosen, folder, run.tokenizer, 40)
        return items, scorer, model

    return load


SENTENCES = "|{sentence_good}", "|{sentence_bad}"
WUG = "wug_adj_nominalization/wug_adj_nominalization"
# A file of each part, the id of its first item, and what is read | what is scored.
FIRST = {
    "blimp": ("blimp_filtered/adjunct_island", "adjunct_island_0", SENTENCES),
    "blimp_supplement": ("supplement_filtered/hypernym", "hypernym_0", SENTENCES),
    "ewok": (
        "ewok_filtered/agent-properties",
        "agent-properties_0",
        ("{Context1}| {Target1}", "{Context1}| {Target2}"),
    ),
    "entity_tracking": (
        "entity_tracking/regular",
        "regular_0_ops_0",
        [f"{{input_prefix}}|{{options[{k}]}}" for k in range(5)],
    ),
    "wug_adj": (WUG, "wug_adj_0", ("|{forms[0]}", "|{forms[1]}")),
    "comps": (
        "comps/comps_wugs",
        "wugs_0",
        [f"{{prefix_{kind}acceptable}}| {{property_phrase}}" for kind in ("", "un")],
    ),
}


@pytest.mark.parametrize("part", FIRST)
def test_sentences_are_scored_after_what_they_follow(part, reads, data):
    """By the notebook's model, answer by answer."""
    place, wanted, answers = FIRST[part]
    items, scorer, model = reads(part)
    _, predictions = evaluation.score_part(items, scorer, model.params)
    names = [each["subset"] for each in predictions]
    assert names == sorted(names)
    (found,) = (each for each in predictions if each["id"] == wanted)
    row = read_lines(data / "full_eval" / f"{place}.jsonl")[0]
    row["forms"] = row.get("sentences", "").split("\t")
    answers = [each.format(**row).split("|") for each in answers]
    expected = [
        float(model.log_probs(text, context=context).sum()) for context, text in answers
    ]
    np.testing.assert_allclose(found["log_probs"], expected, atol=1e-4)
    context, text = answers[int(np.argmax(found["log_probs"]))]
    assert found["pred"] == (f"{context}{text}" if part == "comps" else text)
    if part == "wug_adj":
        odds = np.exp(expected[1] - expected[0])
        assert found["prob"] == pytest.approx(1 / (1 + odds), abs=1e-5)


def test_words_are_scored_after_their_contexts(reads, data):
    """Reading and AoA: surprisal at word ends; without a context, after a newline."""
    items, scorer, model = reads("reading")

    def surprisal(context, word):
        before = f"{context} " if context else ""
        return -float(model.log_probs(word, context=before).sum())

    nats = [
        -float(each.log_probs.sum()) for each in scorer(model.params, items.all_windows)
    ]
    with (data / "full_eval/reading/reading_data.csv").open() as file:
        lines = list(csv.DictReader(file))
    for line, numbers in zip(lines[:7], items.numbers, strict=False):
        expected = [surprisal(line["item"], line["word"])]
        if line["prev_item"]:
            expected.append(surprisal(line["prev_item"], line["prev_word"]))
        assert [nats[n] for n in numbers] == pytest.approx(expected, abs=1e-4)
    assert [len(each) for each in items.numbers[:5]] == [1, 2, 2, 2, 2]
    items, *_ = reads("aoa", "fast")
    (first, second) = items.rows  # "a" has one letter
    assert (first["target_word"], second["context_id"]) == ("bed", 1)
    _, predictions = evaluation.score_part(items, scorer, model.params)
    expected = surprisal(first["context"], "bed")
    assert predictions[0]["surprisal"] == pytest.approx(expected, abs=1e-4)


def test_reading_scores_are_those_of_least_squares():
    """Of made-up times that depend on the length of a word, and one on surprisal."""
    rng, names = np.random.default_rng(0), parts.READING_PREDICTORS
    columns = (*names, "pred", "prev_pred")
    table = pd.DataFrame({name: rng.normal(size=300) for name in columns})
    for name in (*parts.EYE_TRACKING, parts.SELF_PACED):
        table[name] = table["length"] + rng.normal(size=300)
    table["RTgopast"] += 0.5 * table["pred"]

    def scores():
        rows = table.to_dict("records")
        return evaluation.reading_scores(rows, rows)

    def explained(measure, names):
        own = [table[name] for name in names]
        products = [one * other for one, other in itertools.combinations(own, 2)]
        base = np.stack([np.ones(len(table)), *own, *products], axis=1)
        designs = base, np.column_stack([base, table["pred"]])
        before, after = (
            np.linalg.lstsq(design, table[measure])[1].item() for design in designs
        )
        return 1 - after / before

    found = scores()
    alone = [explained(name, names[:3]) for name in parts.EYE_TRACKING]
    assert found["eye_tracking"] == pytest.approx(np.mean(alone))
    expected = explained(parts.SELF_PACED, (*names, "prev_pred"))
    assert found["self_paced"] == pytest.approx(expected)
    assert found["self_paced"] < 0.05 < max(alone)
    # Surprisal that is the reading time explains it; a missing value drops its word.
    table["pred"] = table[parts.SELF_PACED]
    table.loc[0, parts.SELF_PACED] = table.loc[1, "prev_pred"] = np.nan
    assert scores()["self_paced"] > 0.99
    table[parts.SELF_PACED] = 250.0
    with pytest.raises(UserError, match=rf"{parts.SELF_PACED} of the .* always the s"):
        scores()


FULL_TASKS = (
    *("blimp/blimp_filtered", "blimp/supplement_filtered", "ewok/ewok_filtered"),
    *("entity_tracking/entity_tracking", "comps/comps", "reading"),
    *("wug_adj/wug_adj_nominalization", "wug_past/wug_past_tense"),
)
FAST_TASKS = (
    *("blimp/blimp_fast", "blimp/supplement_fast", "ewok/ewok_fast"),
    *("entity_tracking/entity_tracking_fast", *FULL_TASKS[-3:]),
)


def test_predictions_are_written_as_the_pipeline_does(evaluated, tmp_path):
    """In a folder for each milestone; the table has a column for each."""
    out = evaluated
    assert "full      step      12  blimp " in out
    results = json.loads((tmp_path / "out/results.json").read_text())
    full, fast = results["runs"]
    assert [each["revision"] for each in full["checkpoints"]] == ["main"]
    revisions = [each["revision"] for each in fast["checkpoints"]]
    assert revisions == ["chck_1k", "chck_2k"]
    (top,) = (tmp_path / "out/results").iterdir()
    files = top.rglob("predictions.json")
    found = [str(path.parent.relative_to(top)) for path in files]
    expected = [f"main/zero_shot/causal/{task}" for task in FULL_TASKS]
    for at in revisions:
        expected += [f"{at}/zero_shot/causal/{task}" for task in FAST_TASKS]
    assert sorted(found) == sorted(expected)

    def read(name):
        return json.loads((top / "main/zero_shot/causal" / name).read_text())

    blimp = read("blimp/blimp_filtered/predictions.json")
    assert list(blimp) == ["adjunct_island", "principle_A_case_1"]
    lines = blimp["adjunct_island"]["predictions"]
    assert [line["id"] for line in lines] == [f"adjunct_island_{k}" for k in range(6)]
    assert set(lines[0]) == {"id", "pred"}
    first, second, *_ = read("reading/predictions.json")["reading"]["predictions"]
    assert (first["id"], second["id"]) == (0, 1)
    assert np.isnan(first["prev_pred"]) and second["prev_pred"] > 0
    rows = read("AoA_word/surprisal.json")["results"]
    words = [(row["step"], row["context_id"]) for row in rows]
    assert words == [(step, number) for step in revisions for number in (0, 1)]
    assert "would lack" in out and "chck_1M: no milestone of this name" in out
    assert not (tmp_path / "out/all_full_preds_and_fast_scores_causal.json").exists()
    assert "| reading, self-paced |" in out
    assert "| task | full, main | fast, chck_1k | fast, chck_2k |" in out


@pytest.mark.usefixtures("evaluated")
def test_a_whole_submission_is_collected(evaluate, tmp_path, monkeypatch):
    """From scores at hand, with sizes and milestones as the made-up data has them."""

    def six(*names):
        return dict.fromkeys(names, 6)

    moves = six("regular_0_ops", "regular_1_ops")
    small = {
        "blimp": six("adjunct_island", "principle_a_case_1"),
        "blimp_supplement": six("hypernym"),
        "ewok": six("agent-properties"),
        "entity_tracking": {**moves, **six("ambiref_0_ops", "ambiref_1_ops")},
        "wug_adj": six("wug_adj"),
        "wug_past": six("wug_past"),
        "comps": six(*PARTS["comps"].sizes),
        "aoa": {},
    }
    smaller = {
        name: PARTS[name]._replace(sizes=sizes, fast_sizes=sizes or {"aoa": 2})
        for name, sizes in small.items()
    }
    smaller["entity_tracking"] = smaller["entity_tracking"]._replace(fast_sizes=moves)
    for module in (babylm, parts, evaluation):
        if hasattr(module, "PARTS"):
            monkeypatch.setattr(module, "PARTS", smaller)
    monkeypatch.setattr(babylm, "REVISIONS", {"strict-small": ["chck_1k", "chck_2k"]})
    monkeypatch.setattr(babylm, "BABYLM_SIZES", {"rte": 2})

    def read(*folders):
        return {"rte": [1, 0]} if folders else {}

    monkeypatch.setattr(babylm, "read_babylm_predictions", read)
    out = evaluate(finetuned_dir="runs/finetune/babylm")
    assert "Nothing to do: " in out
    path = tmp_path / "out/all_full_preds_and_fast_scores_causal.json"
    assert f"Submission: {path}" in out
    found = json.loads(path.read_text())
    assert set(found) == {*small, "glue", "fast_eval_results"}
    rte = [{"id": "rte_0", "pred": 1}, {"id": "rte_1", "pred": 0}]
    assert found["glue"]["rte"]["predictions"] == rte
    fast = found["fast_eval_results"]
    assert [len(fast[name]) for name in ("blimp", "wug_adj")] == [2, 2]
    # A tie counts as right there, as in the pipeline, and as half in the table.
    results = json.loads((tmp_path / "out/results.json").read_text())
    ours = results["runs"][1]["checkpoints"][0]["tasks"]["blimp"]["subsets"]
    theirs = fast["blimp"][0]
    for name, accuracy in ours.items():
        assert theirs[name] == pytest.approx(accuracy + 0.5 / 6)
    assert "fine-tuned rte: 0 items instead of 2" in evaluate() and not path.exists()


def test_sizes_and_means_are_those_of_the_challenge():
    assert BABYLM_SIZES.keys() <= TASKS.keys() and len(BABYLM_SIZES) == 7
    assert set(PARTS["blimp"].sizes) == {name.lower() for name in PARADIGMS}
    assert sum(PARTS["blimp"].sizes.values()) == 59875
    assert sum(PARTS["entity_tracking"].sizes.values()) == 9483
    assert len(parts.REVISIONS["strict-small"]) == 19
    assert len(parts.REVISIONS["strict"]) == 28
    part = PARTS["wug_past"]
    assert evaluation.missing_items(part, False, {"wug_past": 50}) == ""
    missing = evaluation.missing_items(part, True, {"wug_past": 49})
    assert "wug_past with 49 instead of 50" in missing
    assert evaluation.missing_items(part, True, {}) == "there are no predictions"
    # Over the kinds of entity tracking, each over its numbers of moves.
    found = {"regular_0_ops": 1.0, "regular_1_ops": 0.0, "move_contents_0_ops": 0.2}
    assert evaluation._mean(found) == pytest.approx(0.35)
    assert evaluation._mean({"a": 0.5, "b": 1.0}) == 0.75


def test_data_that_is_not_at_hand_is_left_out(evaluate, data, tmp_path):
    partial = shutil.copytree(data, tmp_path / "partial")
    shutil.rmtree(partial / "full_eval" / "ewok_filtered")
    out = evaluate(data__dir=str(partial), tasks=("ewok", "wug_past"))
    assert "Skipping ewok (full): " in out and "fast      step" in out
    with pytest.raises(FileNotFoundError, match="no data of any of the tasks"):
        evaluate(to="none", data__dir=str(tmp_path / "nothing"))


PAST, AOA = "wug_past_tense/wug_past_tense.jsonl", "aoa/cdi_childes.json"


@pytest.mark.parametrize(
    ("tasks", "name", "content", "said"),
    [
        ("glue", "a", {}, r"config\.tasks names 'glue'"),
        ("wug_past", PAST, {"sentences": "a", "ratio": "much"}, r"1: columns 'sent"),
        ("wug_past", PAST, {"sentences": "a", "ratio": 0.5}, r"1: column 'answers'"),
        ("aoa", AOA, {"word": [{"context": None}]}, "is not an object of words"),
    ],
)
def test_bad_items_are_named(evaluate, tmp_path, tasks, name, content, said):
    path = tmp_path / "data" / "full_eval" / name
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=said):
        evaluate(data__dir=str(tmp_path / "data"), tasks=(tasks,))
