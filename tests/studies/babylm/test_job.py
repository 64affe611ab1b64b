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


# --- what is scored ---------------------------------------------------------------


def sentences(row):
    return [("", row["sentence_good"]), ("", row["sentence_bad"])]


# A file of each part, the id of its first item, and what is read before each answer.
FIRST = {
    "blimp": ("blimp_filtered/adjunct_island", "adjunct_island_0", sentences),
    "blimp_supplement": ("supplement_filtered/hypernym", "hypernym_0", sentences),
    "ewok": (
        "ewok_filtered/agent-properties",
        "agent-properties_0",
        lambda row: [(row["Context1"], f" {row[f'Target{n}']}") for n in (1, 2)],
    ),
    "entity_tracking": (
        "entity_tracking/regular",
        "regular_0_ops_0",
        lambda row: [(row["input_prefix"], option) for option in row["options"]],
    ),
    "wug_adj": (
        "wug_adj_nominalization/wug_adj_nominalization",
        "wug_adj_0",
        lambda row: [("", sentence) for sentence in row["sentences"].split("\t")],
    ),
    "comps": (
        "comps/comps_wugs",
        "wugs_0",
        lambda row: [
            (row[f"prefix_{kind}"], f" {row['property_phrase']}")
            for kind in ("acceptable", "unacceptable")
        ],
    ),
}


@pytest.mark.parametrize("part", FIRST)
def test_sentences_are_scored_after_what_they_follow(part, reads, data):
    """By the notebook's model, answer by answer."""
    place, wanted, answers_of = FIRST[part]
    items, scorer, model = reads(part)
    _, predictions = evaluation.score_part(items, scorer, model.params)
    names = [each["subset"] for each in predictions]
    assert names == sorted(names)
    (found,) = (each for each in predictions if each["id"] == wanted)
    answers = answers_of(read_lines(data / "full_eval" / f"{place}.jsonl")[0])
    expected = [
        float(model.log_probs(text, context=context).sum()) for context, text in answers
    ]
    np.testing.assert_allclose(found["log_probs"], expected, atol=1e-4)
    context, text = answers[int(np.argmax(found["log_probs"]))]
    assert found["pred"] == (f"{context}{text}" if part == "comps" else text)
    if part == "wug_adj":
        odds = np.exp(np.asarray(expected) - max(expected))
        assert found["prob"] == pytest.approx(odds[0] / odds.sum(), abs=1e-5)


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


def test_the_mean_of_entity_tracking_is_over_kinds_then_moves():
    found = {"regular_0_ops": 1.0, "regular_1_ops": 0.0, "move_contents_0_ops": 0.2}
    assert evaluation._mean(found) == pytest.approx(0.35)
    assert evaluation._mean({"a": 0.5, "b": 1.0}) == 0.75


# --- reading times -------------------------------------------------------------------


def reading_table(count=300):
    """Made-up times that depend on the length of a word alone, and surprisal."""
    rng = np.random.default_rng(0)
    names = (*parts.READING_PREDICTORS, "pred", "prev_pred")
    table = pd.DataFrame({name: rng.normal(size=count) for name in names})
    for name in (*parts.EYE_TRACKING, parts.SELF_PACED):
        table[name] = table["length"] + rng.normal(size=count)
    return table


def reading_scores(table):
    rows = table.to_dict("records")
    return evaluation.reading_scores(rows, rows)


def residual_share(table, measure, names):
    """The same by NumPy's least squares."""
    own = [table[name] for name in names]
    products = [one * other for one, other in itertools.combinations(own, 2)]
    base = np.stack([np.ones(len(table)), *own, *products], axis=1)
    left = []
    for design in (base, np.column_stack([base, table["pred"]])):
        fitted = design @ np.linalg.lstsq(design, table[measure], rcond=None)[0]
        left.append(((table[measure] - fitted) ** 2).sum())
    return 1 - left[1] / left[0]


def test_reading_scores_are_those_of_least_squares():
    table, names = reading_table(), parts.READING_PREDICTORS
    table["RTgopast"] += 0.5 * table["pred"]
    found = reading_scores(table)
    alone = [residual_share(table, name, names[:3]) for name in parts.EYE_TRACKING]
    assert found["eye_tracking"] == pytest.approx(np.mean(alone))
    expected = residual_share(table, parts.SELF_PACED, (*names, "prev_pred"))
    assert found["self_paced"] == pytest.approx(expected)
    assert found["self_paced"] < 0.05 < max(alone)
    # Surprisal that is the reading time explains it; a missing value drops its word.
    table["pred"] = table[parts.SELF_PACED]
    table.loc[0, parts.SELF_PACED] = table.loc[1, "prev_pred"] = np.nan
    assert reading_scores(table)["self_paced"] > 0.99


@pytest.mark.parametrize("time", [250.0, np.nan])
def test_reading_times_that_say_nothing_are_refused(time):
    table = reading_table(40).assign(**{parts.SELF_PACED: time})
    with pytest.raises(UserError, match=rf"{parts.SELF_PACED} of the .* always the s"):
        reading_scores(table)


# --- what is written -----------------------------------------------------------------


OF_BOTH = ("wug_adj/wug_adj_nominalization", "wug_past/wug_past_tense", "reading")
OF_FULL = (
    *("blimp/blimp_filtered", "blimp/supplement_filtered", "ewok/ewok_filtered"),
    *("entity_tracking/entity_tracking", "comps/comps"),
)
OF_FAST = (
    *("blimp/blimp_fast", "blimp/supplement_fast", "ewok/ewok_fast"),
    "entity_tracking/entity_tracking_fast",
)


def test_predictions_are_written_as_the_pipeline_does(evaluate, tmp_path):
    """In a folder for each milestone; the table has a column for each."""
    out = evaluate()
    assert "full      step      12  blimp " in out
    results = json.loads((tmp_path / "out/results.json").read_text())
    full, fast = results["runs"]
    assert [each["revision"] for each in full["checkpoints"]] == ["main"]
    revisions = [each["revision"] for each in fast["checkpoints"]]
    assert revisions == ["chck_1k", "chck_2k"]
    (top,) = (tmp_path / "out/results").iterdir()
    files = top.rglob("predictions.json")
    found = [str(path.parent.relative_to(top)) for path in files]
    assert sorted(found) == sorted(
        [f"main/zero_shot/causal/{task}" for task in (*OF_FULL, *OF_BOTH)]
        + [f"{at}/zero_shot/causal/{task}" for at in revisions for task in OF_FAST]
        + [f"{at}/zero_shot/causal/{task}" for at in revisions for task in OF_BOTH]
    )

    def read(name):
        return json.loads((top / "main/zero_shot/causal" / name).read_text())

    blimp = read("blimp/blimp_filtered/predictions.json")
    assert list(blimp) == ["adjunct_island", "principle_A_case_1"]
    lines = blimp["adjunct_island"]["predictions"]
    assert [line["id"] for line in lines] == [f"adjunct_island_{k}" for k in range(6)]
    assert set(lines[0]) == {"id", "pred"}
    lines = read("reading/predictions.json")["reading"]["predictions"]
    assert [line["id"] for line in lines] == list(range(60))
    assert np.isnan(lines[0]["prev_pred"]) and lines[1]["prev_pred"] > 0
    words = [
        (each["step"], each["context_id"])
        for each in read("AoA_word/surprisal.json")["results"]
    ]
    assert words == [(step, number) for step in revisions for number in (0, 1)]
    assert "would lack" in out and "chck_1M: no milestone of this name" in out
    assert not (tmp_path / "out/all_full_preds_and_fast_scores_causal.json").exists()
    table = (tmp_path / "out/results.md").read_text()
    assert table in out and "| reading, self-paced |" in table
    assert "| task | full, main | fast, chck_1k | fast, chck_2k |" in table


def test_a_whole_submission_is_collected(evaluate, tmp_path, monkeypatch):
    """With sizes and milestones as the made-up data has them."""

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
    monkeypatch.setattr(
        babylm,
        "read_babylm_predictions",
        lambda *folders: {"rte": [1, 0]} if folders else {},
    )
    assert "fine-tuned rte: 0 items instead of 2" in evaluate()
    out = evaluate(finetuned_dir="runs/finetune/babylm")
    path = tmp_path / "out/all_full_preds_and_fast_scores_causal.json"
    assert f"Submission: {path}" in out
    found = json.loads(path.read_text())
    assert set(found) == {*small, "glue", "fast_eval_results"}
    assert found["glue"]["rte"]["predictions"] == [
        {"id": "rte_0", "pred": 1},
        {"id": "rte_1", "pred": 0},
    ]
    fast = found["fast_eval_results"]
    assert [len(fast[name]) for name in ("blimp", "wug_adj")] == [2, 2]
    # A tie counts as right there, as in the pipeline, and as half in the table.
    results = json.loads((tmp_path / "out/results.json").read_text())
    ours = results["runs"][1]["checkpoints"][0]["tasks"]["blimp"]["subsets"]
    theirs = fast["blimp"][0]
    for name, accuracy in ours.items():
        assert theirs[name] == pytest.approx(accuracy + 0.5 / 6)
    monkeypatch.setattr(babylm, "BABYLM_SIZES", {"rte": 2, "wsc": 52})
    out = evaluate(finetuned_dir="runs/finetune/babylm")
    assert "fine-tuned wsc: 0 items instead of 52" in out and not path.exists()


def test_sizes_are_those_of_the_challenge():
    assert BABYLM_SIZES.keys() <= TASKS.keys() and len(BABYLM_SIZES) == 7
    assert set(PARTS["blimp"].sizes) == {name.lower() for name in PARADIGMS}
    assert sum(PARTS["blimp"].sizes.values()) == 59875
    assert sum(PARTS["entity_tracking"].sizes.values()) == 9483
    assert len(parts.REVISIONS["strict-small"]) == 19
    assert len(parts.REVISIONS["strict"]) == 28
    part = PARTS["wug_past"]
    assert evaluation.missing_items(part, False, {"wug_past": 50}) == ""
    assert "wug_past with 49 instead of 50" in evaluation.missing_items(
        part, True, {"wug_past": 49}
    )
    assert evaluation.missing_items(part, True, {}) == "there are no predictions"


# --- bad input -----------------------------------------------------------------------


def test_data_that_is_not_at_hand_is_left_out(evaluate, data, tmp_path):
    partial = shutil.copytree(data, tmp_path / "partial")
    shutil.rmtree(partial / "full_eval" / "ewok_filtered")
    out = evaluate(data__dir=str(partial), tasks=("ewok", "wug_past"))
    assert "Skipping ewok (full): " in out and "fast      step" in out
    with pytest.raises(FileNotFoundError, match="no data of any of the tasks"):
        evaluate(to="none", data__dir=str(tmp_path / "nothing"))


WUG, AOA = "wug_past_tense/wug_past_tense.jsonl", "aoa/cdi_childes.json"


@pytest.mark.parametrize(
    ("part", "name", "content", "said"),
    [
        (
            "wug_past",
            WUG,
            ["a", "much"],
            r"tense\.jsonl:1: columns 'sentences' and 'ra",
        ),
        ("wug_past", WUG, ["a", 0.5], r":1: column 'answers' holds \['a'\]"),
        ("aoa", AOA, {"word": 3}, "is not an object of words"),
        ("aoa", AOA, {"word": [{"context": None}]}, "is not an object of words"),
    ],
)
def test_bad_items_are_named(evaluate, tmp_path, part, name, content, said):
    path = tmp_path / "data" / "full_eval" / name
    path.parent.mkdir(parents=True)
    if part == "wug_past":
        content = dict(zip(("sentences", "ratio"), content, strict=True))
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=said):
        evaluate(data__dir=str(tmp_path / "data"), tasks=(part,))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"tasks": ("glue",)}, r"config\.tasks names 'glue'"),
        ({"track": "loose"}, r"config\.track='loose' is not known"),
        ({"sets": ("slow",)}, r"config\.sets='slow' is not known"),
    ],
    ids=str,
)
def test_tasks_tracks_and_sets_are_known(evaluate, overrides, said):
    with pytest.raises(UserError, match=said):
        evaluate(**overrides)


def test_a_run_without_milestones_is_refused(evaluate, pretrained):
    with pytest.raises(FileNotFoundError, match="holds no milestone"):
        evaluate(init_from=str(pretrained), sets=("fast",))
