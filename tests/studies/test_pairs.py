"""BLiMP's paradigms, pairs of one's own, and what is scored of them."""

import dataclasses
import itertools
import statistics

import pytest
from made_up_tasks import prepare_dataset
from made_up_tokenizer import Characters, shown
from tiny_run import job_config
from tiny_tasks import write_lines

from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.studies.blimp import FIELDS, PARADIGMS, PUBLISHED, TERMS
from gpt1_jax.studies.pairs import load_pairs, select_pairs

TOKENIZER = Characters()
OWN = job_config(
    "minimal_pairs", "custom", init_from="run", data__files="pairs.jsonl"
).data
DATA = dataclasses.replace(OWN, source="official", dir="blimp", files="")
PAIR = {"sentence_good": "a", "sentence_bad": "b"}


def own(folder, rows, **values):
    """The answers of pairs in a file of one's own."""
    path = write_lines(folder / "pairs.jsonl", rows)
    data = dataclasses.replace(OWN, files=str(path), **values)
    (task,) = select_pairs(("custom",), data)
    return load_pairs(task, data, TOKENIZER, 96)


def test_the_table_of_paradigms_is_whole():
    """The means are those that BLiMP's authors publish: 61.2, 69.8, 69.6, 83.0."""
    assert len(PARADIGMS) == 67 and len(TERMS) == 12
    assert {each.field for each in PARADIGMS.values()} == set(FIELDS)
    means = {
        name: statistics.fmean(each.published[name] for each in PARADIGMS.values())
        for name in PUBLISHED
    }
    expected = [61.24029851, 69.8119403, 69.62537313, 83.0238806, 88.55]
    assert list(means.values()) == pytest.approx(expected, abs=0.01)


def selected(*names):
    tasks = select_pairs(names, DATA)
    return {task.task.name: list(task.task.published.files["test"]) for task in tasks}


def test_paradigms_terms_and_fields_are_selected_once():
    assert list(selected("blimp")) == list(TERMS)
    assert sum(map(len, selected("blimp").values())) == 67
    assert selected("adjunct_island") == {"island_effects": ["adjunct_island"]}
    assert len(selected("island_effects", "adjunct_island")["island_effects"]) == 8
    by_field = [found for field in FIELDS for found in selected(field).values()]
    assert sorted(itertools.chain(*by_field)) == sorted(PARADIGMS)


@pytest.mark.parametrize(
    ("names", "data", "problem"),
    [
        (("islands",), DATA, r"no paradigm, term or field 'islands'.*synta"),
        (("custom",), DATA, r"config\.tasks=.* does not go with"),
        (("a", "custom"), OWN, r"config\.tasks=.* does not go with"),
    ],
)
def test_what_blimp_does_not_have_is_refused(names, data, problem):
    with pytest.raises(UserError, match=problem):
        select_pairs(names, data)


def test_official_files_are_read_paradigm_by_paradigm(tmp_path):
    names = list(selected("ellipsis")["ellipsis"])
    for name in names:
        rows = [{**PAIR, "UID": name, "pairID": str(k)} for k in range(5)]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    data = dataclasses.replace(DATA, dir=str(tmp_path), max_pairs=3)
    (task,) = select_pairs(("ellipsis",), data)
    found = load_pairs(task, data, TOKENIZER, 96)
    assert [each.subset for each in found.examples] == [*names[:1] * 3, *names[1:] * 3]
    assert found.labels.tolist() == [0] * 6 and found.num_long == 0
    assert shown(found)[:2] == ["\n|a ", "\n|b "]
    (tmp_path / f"{names[1]}.jsonl").unlink()
    with pytest.raises(MissingData, match=rf"{names[1]}\.jsonl does not exist"):
        load_pairs(task, data, TOKENIZER, 96)


def test_the_dataset_of_tfds_is_read(tmp_path):
    other = {"UID": "adjunct_island", "field": "syntax", "linguistics_term": "a"}
    methods = ("one_prefix_method", "simple_LM_method", "two_prefix_method")
    other |= dict.fromkeys(("lexically_identical", *methods), True)
    rows = [
        {"sentence_good": f"It {k} is.", "sentence_bad": f"It {k} are.", "pair_id": k}
        for k in range(3)
    ]
    rows = [{**row, **other} for row in rows]
    prepare_dataset("blimp/adjunct_island", {"train": rows}, tmp_path)
    data = dataclasses.replace(DATA, source="tfds", dir=str(tmp_path))
    (task,) = select_pairs(("adjunct_island",), data)
    found = load_pairs(task, data, TOKENIZER, 96)
    pairs = {each.id: each.choices for each in found.examples}
    assert pairs == {str(k): (f"It {k} is.", f"It {k} are.") for k in range(3)}


def test_columns_are_named_and_the_better_one_too(tmp_path):
    """A paradigm without a name is not the paradigm None."""
    rows = [
        {"a": "one", "b": "two", "best": "b", "kind": "x"},
        {"a": "three", "b": "four", "best": "a", "kind": None},
        {"a": "five", "b": "six", "best": "1", "kind": "None"},
    ]
    found = own(tmp_path, rows, sentences=("a", "b"), good="best", paradigm="kind")
    of_text = {each.choices[0]: (each.label, each.subset) for each in found.examples}
    assert of_text == {"one": (1, "x"), "three": (0, ""), "five": (1, "None")}


def test_items_may_have_several_sentences(tmp_path):
    rows = [
        {"options": ["a", "bc", "d"], "good": 2},
        {"options": ["e", "f"], "good": 0},
    ]
    found = own(tmp_path, rows, sentences=("options",), good="good")
    assert found.num_answers == [3, 2] and found.labels.tolist() == [2, 0]
    assert {each.subset for each in found.examples} == {"pairs"}


def test_after_a_context_only_the_sentence_is_scored(tmp_path):
    """Which may stand in a column of this name."""
    rows = [
        {"context": "she ran.", "bad": "she run.", "before": "then "},
        {"context": "so it is", "bad": "so is it", "before": ""},
    ]
    found = own(tmp_path, rows, sentences=("context", "bad"), context="before")
    assert shown(found) == [
        *("\nthen |she ran. ", "\nthen |she run. "),
        *("\n|so it is ", "\n|so is it "),
    ]


@pytest.mark.parametrize(
    ("row", "values", "problem"),
    [
        ({"sentence_good": "a"}, {}, r"no column 'sentence_bad'; the columns are sent"),
        (PAIR, {"context": "lead"}, "no column 'lead'"),
        (PAIR, {"good": "best"}, "no column 'best'"),
        (PAIR, {"paradigm": "kind"}, "no column 'kind'"),
        ({**PAIR, "sentence_bad": " "}, {}, "an answer or sentence is empty, so"),
        ({**PAIR, "sentence_bad": [3]}, {}, r"'sentence_bad' holds \[3\], not t"),
        ({**PAIR, "lead": ["a"]}, {"context": "lead"}, r"'lead' holds \['a'\], not"),
        ({**PAIR, "best": "c"}, {"good": "best"}, "label 'c' is neither"),
        ({**PAIR, "best": ""}, {"good": "best"}, "no label in column 'best'"),
    ],
    ids=str,
)
def test_pairs_that_cannot_be_used_are_named(tmp_path, row, values, problem):
    with pytest.raises(UserError, match=rf"pairs\.jsonl:1: .*{problem}"):
        own(tmp_path, [row], **values)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ("none", r"names no file.* A folder is searched"),
        (",", "files=',' names no file"),
        ("none/missing.jsonl", r"missing\.jsonl' names no file"),
        ("a.txt", r"ends in '\.txt'; rows are read from \.json"),
        ("one,two", "two files 'a', whose scores would have one"),
        ("one", r"a\.jsonl holds no pairs"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path, monkeypatch, files, problem):
    monkeypatch.chdir(tmp_path)
    for name in ("none", "one", "two"):
        (tmp_path / name).mkdir()
    for name in ("a.txt", "one/a.jsonl", "two/a.jsonl"):
        (tmp_path / name).write_text("\n")
    data = dataclasses.replace(OWN, files=files)
    with pytest.raises((UserError, FileNotFoundError), match=problem):
        (task,) = select_pairs(("custom",), data)
        load_pairs(task, data, TOKENIZER, 96)


def test_equal_sentences_are_named_and_a_long_item_stays_whole(tmp_path):
    rows = [
        {"sentence_good": "to be", "sentence_bad": "to  be", "id": "first"},
        {"sentence_good": "a" * 120, "sentence_bad": "to bee", "id": "second"},
        {"sentence_good": "or not", "sentence_bad": "or not"},
    ]
    found = own(tmp_path, rows)
    assert found.equal() == ["pairs first", f"pairs {tmp_path / 'pairs.jsonl'}:3"]
    assert found.num_long == 1 and len(found.windows[2].ids) == 121
