"""The sections of a report."""

import functools
import re
import shlex

import pytest
from etils import epath
from made_up_runs import (
    SIZES,
    finished_result,
    write_finished,
    write_json,
    write_one_of_each,
    write_pretrained,
)
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.finetuning.results import read_finished
from gpt1_jax.report import sections
from gpt1_jax.report.comparisons import COMPARISONS
from gpt1_jax.report.plots import Picture
from gpt1_jax.report.runs import read_runs
from gpt1_jax.runs.pretrained import read_pretrained

TABLES = "Fine-tuning (Tables 2 to 4)"
ABLATIONS = "Ablations (Table 5)"
LAYERS = "Layers transferred (Figure 2, left)"
ZERO_SHOT = "Zero-shot over updates (Figure 2, right)"
LSTM = {**SIZES, "kind": "lstm"}


def document(*folders):
    runs = read_runs([str(folder) for folder in folders], {})
    return sections.make_report(runs, "A title", "23 November 2026")


def titles(report):
    return [section.title for section in report.sections]


def blocks_of(report, title):
    """The blocks of a section; none if it is left out."""
    found = [section for section in report.sections if section.title == title]
    return [block for section in found for block in section.blocks]


def text_of(report, title):
    blocks = blocks_of(report, title)
    return "\n\n".join(block for block in blocks if isinstance(block, str))


def pictures(report, title):
    return [each for each in blocks_of(report, title) if isinstance(each, Picture)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report on one run of each kind."""
    return document(write_one_of_each(tmp_path_factory.mktemp("runs")))


def test_a_report_has_scores_then_curves_and_last_what_they_were_made_of(report):
    last = ["Pre-training", "Models", "Configurations", "Versions"]
    assert titles(report) == [TABLES, ZERO_SHOT, *last]
    assert [each.folded for each in report.sections[-3:]] == [True, True, False]
    assert "1 pre-trained run, 1 finished fine-tuned run, 1 zero" in report.introduction
    assert "Made on 23 November 2026" in report.introduction
    assert [p.name for p in report.pictures] == ["zero_shot", "pretraining"]
    assert "Missing" not in report.markdown, "of what nobody began"
    configurations = text_of(report, "Configurations")
    assert re.findall("### (.*)", configurations) == [
        "Pre-training: small",
        "Fine-tuning: 1 run",
        "Zero-shot: runs/pretrain/small",
    ]
    rows = text_of(report, "Versions").splitlines()[2:]
    named = ["this page", "small", "1 fine-tuned run"]
    named.append("zero-shot of runs/pretrain/small")
    assert [row.split("|")[1].strip() for row in rows] == named
    assert "not recorded" in rows[2] and "jax 0.10.2" in rows[3]


def test_pre_training_says_how_well_and_how_fast(report):
    text = text_of(report, "Pre-training")
    row = next(line for line in text.splitlines() if line.startswith("| small |"))
    hardware = "8 x TPU v5e (Linux x86_64, 112 cores)"
    numbers = "5.125 | 8 | 8,192 | 2 min 0 s | 75.0% | 200 | 45.0%"
    assert row == f"| small | {hardware} | {numbers} |"
    (picture,) = pictures(report, "Pre-training")
    assert "small: 5.125" in picture.alt
    (axes,) = picture.draw().axes
    points = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert points == [([4096, 8192], [6.5, 5.5]), ([4096, 8192], [6.25, 5.125])]
    row = {"run": "small", "split": "training", "tokens": 4096, "loss": 6.5}
    assert picture.rows[0] == row and len(picture.rows) == 4


def test_the_curve_of_a_run_continues_that_of_its_origin(tmp_path):
    source = write_pretrained(tmp_path / "first")
    write_pretrained(tmp_path / "more", init_from=str(source))
    report = document(tmp_path)
    (axes,) = report.pictures[0].draw().axes
    points = [list(line.get_xdata()) for line in axes.lines]
    assert points == 2 * [[4096, 8192]] + 2 * [[12288, 16384]]
    assert "epochs: 2.00; before that, 8,192 tokens" in text_of(report, "Models")
    lines = text_of(report, "Pre-training").split("\n")
    row = next(line for line in lines if "| more |" in line)
    assert "| 8,192 |" in row, "its own alone"


def commands_of(report):
    """The flags of each command that a report names."""
    blocks = re.findall(r"```bash\n(.*?)\n```", report.markdown, re.DOTALL)
    return [shlex.split(block.replace("\\\n", "")) for block in blocks]


@pytest.mark.parametrize(
    ("preset", "section", "missing"),
    [
        ("all", TABLES, "MNLI, SNLI, SciTail, QNLI, RTE, Story Cloze, RACE, SST-2,"),
        ("ablations", ABLATIONS, "runs that differ in variant"),
        ("layer_transfer", LAYERS, "runs that differ in layers transferred"),
    ],
)
def test_what_was_begun_names_an_accepted_command(tmp_path, preset, section, missing):
    run = {"init_from": "my runs/$(date)", "preset": preset}
    write_finished(tmp_path / "1", "cola", seed=1, **run)
    write_finished(tmp_path / "2", "cola", seed=2, **run)
    report = document(tmp_path)
    assert f"**Missing:** {missing}" in text_of(report, section)
    ((python, _, program, file, *flags),) = commands_of(report)
    assert (python, program) == ("python", "gpt1_jax.main")
    assert file == f"--config=configs/finetune.py:{preset}"
    given = dict(flag.removeprefix("--config.").split("=", 1) for flag in flags)
    assert given["init_from"] == "my runs/$(date)" and given["seeds"] == "1,2"
    lstm = given.get("suite.lstm_init_from")
    assert lstm == ("runs/pretrain/lstm" if preset == "ablations" else None)
    values = load_config(preset, file="finetune", **{**given, "seeds": (1, 2)})
    config_lib.load(values.to_dict())


@pytest.fixture
def add(tmp_path):
    """A function that adds a finished run to those that `told` reports."""

    def make(*arguments, tokenizer="", **values):
        folder = tmp_path / "runs" / str(len(list(tmp_path.glob("runs/*"))))
        write_finished(folder, *arguments, **values)
        if tokenizer:
            file = folder / "tokenizer" / "tokenizer.json"
            write_json(file, {"content_digest": tokenizer})
        return read_finished(epath.Path(folder))

    return make


@pytest.fixture
def told(tmp_path):
    return lambda: document(tmp_path / "runs")


def test_a_model_of_the_hub_is_named_by_its_address(add, told):
    """Not by the folder in somebody's cache that it was converted to."""
    commit = "0123456789abcdef" * 2 + "01234567"
    cache = f"/home/me/.cache/gpt1_jax/hub/openai-community--openai-gpt/{commit}"
    add("sst2", 0.8, init_from=cache, preset="all")
    add("sst2", 0.6, init_from=cache, transfer_layers="none")
    text = text_of(told(), TABLES)
    address = f"hf://openai-community/openai-gpt@{commit}"
    assert f"### From {address}, a Transformer at step 8" in text
    assert "| SST-2 | accuracy | 40 | 80.0 | 60.0 | 50.0 | 91.3 | 84.0 |" in text
    assert f"--config.init_from={address} " in text and "/.cache/" not in text


def test_runs_on_other_data_or_with_other_settings_have_lines_of_their_own(add, told):
    def add_run(seed=0, train="0/one.jsonl", number=64, contents="ab", **more):
        of_train, of_dev = contents
        digests = {"training examples": of_train, "dev examples": of_dev}
        digests = {"content_digests": {"origin": "o", **digests}}
        result = finished_result("custom", 0.75, train_examples=number, **digests)
        places = {"data__train": train, "data__dev": "d"}
        add("custom", seed=seed, result=result, **places, **more)

    add_run()
    add_run(seed=1, train="1/one.jsonl")  # which read the same from another place
    add_run(train__num_epochs=1.5)
    add_run(train="one.jsonl", number=160, contents="cb")
    add_run(contents="ae")
    made = told()
    text = text_of(made, "Fine-tuning")
    rows = [line for line in text.splitlines() if line.startswith("| custom")]
    scores = [row for row in rows if " | accuracy | " in row]
    start = "pre-trained | accuracy | dev"
    assert [row.rpartition(" | - ")[0] for row in scores] == [
        f"| custom (1) | {start} | 75.0 (75.0 to 75.0) | 50.0",
        *(f"| custom ({number}) | {start} | 75.0 | 50.0" for number in (2, 3, 4)),
    ]
    assert not any("Table" in title for title in titles(made))
    header = (
        "| what differs | training examples | data.train | train.num_epochs "
        "| content of training examples | content of dev examples |"
    )
    assert header in text
    assert rows[-4:] == [
        "| custom (1) | 64 | 0/one.jsonl | 3.0 | a | b |",
        "| custom (2) | 64 | 0/one.jsonl | 1.5 | a | b |",
        "| custom (3) | 160 | one.jsonl | 3.0 | c | b |",
        "| custom (4) | 64 | 0/one.jsonl | 3.0 | a | e |",
    ]
    assert "**Average**" not in text


def test_a_report_on_ones_own_runs_is_about_them(add, told, tmp_path):
    """And has no section without content."""
    write_pretrained(tmp_path / "runs" / "pretrain" / "letters")
    add("custom", custom__name="reviews")
    made = told()
    assert "reproduction" not in made.introduction
    named = ["Fine-tuning", "Pre-training", "Models", "Configurations", "Versions"]
    assert titles(made) == named
    runs = read_runs([str(tmp_path / "runs")], {})
    assert sections.make_report(runs, "", "today").title == "letters, reviews"


def test_a_score_stands_beside_what_it_has_to_beat_on_the_same_split(add, told):
    test = {"n": 9, "accuracy": 0.6, "f1": 0.55}
    words = {"n": 40, "accuracy": 0.7, "f1": 0.65}
    result = finished_result("custom", 0.75, test=test, bag_of_words=words)
    named = {"custom__name": "reviews", "custom__labels": ("bad", "good")}
    add("custom", result=result, **named)
    rows = text_of(told(), "Fine-tuning").split("\n")
    header = "task | start | metric | split | score | majority | bag of words | n"
    assert rows[2] == f"| {header} |"
    rows = [row.removeprefix("| reviews | pre-trained | ") for row in rows]
    assert "accuracy | dev | 75.0 | 50.0 | 70.0 | 40 |" in rows
    assert "f1 of good | dev | 75.0 | 50.0 | 65.0 | 40 |" in rows
    assert "accuracy | test | 60.0 | - | - | 9 |" in rows  # as up to version 1.0
    other = {"majority": {"n": 9, "accuracy": 0.4}, "bag_of_words": None}
    named["custom__name"] = "others"
    add("custom", result={**result, "test_baselines": other}, **named)
    text = text_of(told(), "Fine-tuning")
    assert "accuracy | test | 60.0 | 40.0 | - | 9 |" in text


def test_an_origin_that_was_trained_again_in_its_place_is_another(add, told):
    def of_origin(digest):
        digests = {"origin": digest, "training examples": "a", "dev examples": "b"}
        return finished_result("sst2", 0.75, content_digests=digests)

    add(result=of_origin("a" * 64))
    add(result=of_origin("a" * 64), seed=1)
    assert "a Transformer at step 8\n" in text_of(told(), TABLES)
    add(result=of_origin("b" * 64))
    text = text_of(told(), TABLES)
    for letter in "ab":
        assert f"a Transformer at step 8, content {12 * letter}\n" in text
    assert text.count("Ours is measured on the dev splits") == 1


def test_runs_on_babylms_data_are_in_no_table_or_figure_of_the_paper(add, told):
    """They are a part of each task's; their scores have a table of their own."""
    add("rte", 0.5)
    before = told()
    for weight, layers in ((0.5, "all"), (0.0, "all"), (0.5, "1"), (0.5, "none")):
        part = {"data__dir": "a", "tasks": ("rte",), "transfer_layers": layers}
        add("babylm", 0.9, head__aux_lm_weight=weight, **part)
    after = told()
    assert titles(after) == ["Fine-tuning", *titles(before)]
    part = "on BabyLM's data, which is a part of each task's."
    note = f"The paper's tables and figures leave out 4 fine-tuned runs {part}"
    text = text_of(after, TABLES)
    assert note in text
    assert text.replace(f"\n\n{note}", "") == text_of(before, TABLES)
    scores = text_of(after, "Fine-tuning")
    assert "| pre-trained | accuracy | dev | 90.0 | 50.0 | - | 40 |" in scores
    assert "| RTE, aux_lm_weight 0.5 | pre-trained |" in scores


def test_runs_are_grouped_by_origin_and_those_from_scratch_join_their_like(add):
    """Those with the same tokenizer and sizes, whichever folder and step they name."""
    first = add(tokenizer="a")
    later = add(tokenizer="a", init_from="runs/pretrain/later")
    other = add(tokenizer="b", init_from="runs/pretrain/other")
    lstm = add(tokenizer="a", init_from="runs/pretrain/lstm", sizes=LSTM)
    scratch = add(tokenizer="a", transfer_layers="none")
    found = sections.by_origin([scratch, first, later, other, lstm, first])
    groups = [[scratch, first, first], [scratch, later], [other], [lstm]]
    assert list(found.values()) == groups
    origin, *_, last = found
    assert origin.heading == "From runs/pretrain/small, a Transformer at step 8"
    assert last.heading == "From runs/pretrain/lstm, an LSTM at step 8"
    ((alone, runs),) = sections.by_origin([scratch]).items()
    assert runs == [scratch]
    of_tokenizer = "a Transformer with the tokenizer and sizes of runs/pretrain/small"
    assert alone.heading == f"From scratch, {of_tokenizer}"
    sizes = {**SIZES, "num_layers": 2}
    small = add(tokenizer="a", transfer_layers="none", sizes=sizes)
    assert list(sections.by_origin([small, first]).values()) == [[small], [first]]


def test_tables_hold_runs_as_in_the_paper_on_the_most_training_examples(add):
    whole, four = add(score=0.8), add(score=0.7, transfer_layers="4")
    none = add(score=0.6, transfer_layers="none")
    others = [add(transfer_layers="2"), add(head__aux_lm_weight=0.0)]
    assert sections.as_in_paper([whole, none, four, *others]) == [whole, four, none]
    some = add(score=0.1, data__max_train_examples=10)
    more = add(score=0.2, data__max_train_examples=20)
    assert sections.as_in_paper([some, whole, more]) == [whole]
    other = add(data__max_train_examples=5, data__dir="other")
    assert sections.as_in_paper([some, more, other]) == [more, other]


def test_a_table_5_holds_one_transformer_and_one_lstm(add):
    small, large = add(), add(init_from="runs/pretrain/large")
    lstm = add(init_from="runs/pretrain/lstm", sizes=LSTM)
    other = add("copa")  # not a column of Table 5
    compared = functools.partial(sections.origins_compared, COMPARISONS["ablations"])
    tables = compared([small, large, lstm, other])
    assert [runs for _, runs in tables] == [[small, lstm], [large, lstm]]
    assert tables[0][0].endswith("step 8; LSTM: runs/pretrain/lstm")
    assert compared([small])[0][1] == [small]
    assert compared([lstm])[0][1] == [lstm]
    assert compared([other]) == []


def test_names_of_tasks_and_origins_are_escaped(add, told):
    for task, layers in (("<i>", "all"), ("<i>", "1"), ("cola", "all")):
        add(task, init_from="a|b", transfer_layers=layers)
    report = told()
    assert r"### From a\|b" in text_of(report, LAYERS)
    for section in (TABLES, LAYERS):
        assert r"| \<i\> | accuracy |" in text_of(report, section)
    (picture,) = pictures(report, LAYERS)
    assert picture.draw().axes[0].get_title() == "<i>"


def test_only_values_that_differ_from_the_preset_are_listed(tmp_path):
    def configured(**values):
        write_pretrained(tmp_path / "a", **values)
        return read_pretrained(epath.Path(tmp_path / "a")).config

    config = configured(seed=3, data__source="text", data__train="<b>|*")
    assert sections.changed_values(config) == {
        "seed": 3,
        "train.num_steps": 8,
        "optimizer.warmup_steps": 2,
        "data.source": "text",
        "data.train": "<b>|*",
    }
    text = sections.describe_config(config)
    assert "pretrain.py:quickstart" in text and "| train.num_steps | 8 |" in text
    assert r"| data.train | \<b\>\|\* |" in text


def test_runs_that_took_over_fewer_layers_have_lines_of_their_own(add, told):
    for number, layers in enumerate(("0", "1", "all", "none")):
        add("custom", 0.5 + number / 10, transfer_layers=layers)
    lines = text_of(told(), "Fine-tuning").split("\n")
    rows = [line.split(" | ") for line in lines if "| custom" in line]
    scores = {row[1]: row[4] for row in rows if row[2] == "accuracy"}
    few = {"0 of 4 layers": "50.0", "1 of 4 layers": "60.0"}
    assert scores == {**few, "from scratch": "80.0", "pre-trained": "70.0"}
