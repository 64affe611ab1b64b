"""The sections of a report."""

import dataclasses
import json
import re
import shlex

import pytest
from etils import epath
from made_up_runs import (
    SESSION,
    finished_result,
    write_finished,
    write_json,
    write_pretrained,
    write_zero_shot,
)
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.finetuning.results import read_finished
from gpt1_jax.report import sections
from gpt1_jax.report.page import Folded, Picture, Text
from gpt1_jax.report.runs import read_runs
from gpt1_jax.report.studies import find_studies
from gpt1_jax.runs.pretrained import read_pretrained

TITLES = [
    "Models",
    "Pre-training",
    "Fine-tuning (Tables 2 to 4)",
    "Ablations (Table 5)",
    "Layers transferred (Figure 2, left)",
    "Zero-shot over updates (Figure 2, right)",
    "Weight of the auxiliary objective",
    "Configurations",
    "Versions",
]

FINE_TUNING, ABLATIONS, LAYERS, ZERO_SHOT, WEIGHTS = range(2, 7)


def document(*folders):
    runs = read_runs([str(folder) for folder in folders], find_studies())
    return sections.make_report(runs, "A title", "23 November 2026")


def text_of(section):
    return "\n\n".join(b.markdown for b in section.blocks if isinstance(b, Text))


@pytest.fixture
def report(tmp_path):
    """A report on one run of each kind."""
    write_pretrained(tmp_path / "pretrain" / "small")
    write_finished(tmp_path / "finetune" / "sst2")
    write_zero_shot(tmp_path / "zero_shot")
    return document(tmp_path)


def test_the_sections_stand_in_order(report):
    assert [section.title for section in report.sections] == TITLES
    assert "1 pre-trained run, 1 finished fine-tuned run, 1 zero" in report.introduction
    assert "Made on 23 November 2026" in report.introduction
    assert [p.name for p in report.pictures] == ["pretraining", "zero_shot"]


def test_pre_training_says_how_well_and_how_fast(report):
    text = text_of(report.sections[1])
    row = next(line for line in text.splitlines() if line.startswith("| small |"))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        "8 x TPU v5e (Linux x86_64, 112 cores)",
        "8",
        "8,192",
        "5.125",
        "2 min 0 s",
        "75.0%",
        "200",
        "45.0%",
    ]
    assert "small: 5.125" in report.pictures[0].alt
    (axes,) = report.pictures[0].draw().axes
    points = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert points == [([4096, 8192], [6.5, 5.5]), ([4096, 8192], [6.25, 5.125])]


def test_the_curve_of_a_run_continues_that_of_its_origin(tmp_path):
    source = write_pretrained(tmp_path / "first")
    write_pretrained(tmp_path / "more", init_from=str(source))
    report = document(tmp_path)
    (axes,) = report.pictures[0].draw().axes
    points = [list(line.get_xdata()) for line in axes.lines]
    assert points == 2 * [[4096, 8192]] + 2 * [[12288, 16384]]
    assert "epochs: 2.00; before that, 8,192 tokens" in text_of(report.sections[0])
    row = next(x for x in text_of(report.sections[1]).split("\n") if "| more |" in x)
    assert "| 8,192 |" in row, "its own alone"


def commands_of(section):
    """The flags of each command that a section names."""
    blocks = re.findall(r"```bash\n(.*?)\n```", text_of(section), re.DOTALL)
    return [shlex.split(block.replace("\\\n", "")) for block in blocks]


def test_missing_results_name_commands_that_are_accepted(tmp_path):
    write_finished(tmp_path / "copa", "copa", init_from="my runs/$(date)")
    lstm = write_finished(tmp_path / "lstm", "copa", init_from="it's")
    config = json.loads((lstm / "config.json").read_text())
    config["model"]["kind"] = "lstm"
    write_json(lstm / "config.json", config)
    files = []
    for section in document(tmp_path).sections[:-2]:
        assert "**Missing:**" in text_of(section)
        ((python, _, program, file, *flags),) = commands_of(section)
        assert (python, program) == ("python", "gpt1_jax.main")
        given = dict(flag.removeprefix("--config.").split("=", 1) for flag in flags)
        assert given.get("init_from", "my runs/$(date)") == "my runs/$(date)"
        both = [each for name, each in given.items() if name.endswith("_init_from")]
        assert both == ["it's"] * (file.endswith(("ablations", "zero_shot.py")))
        files.append(file.removeprefix("--config=configs/"))
        if "seeds" in given:
            given["seeds"] = tuple(map(int, given["seeds"].split(",")))
        path, _, preset = files[-1].partition(":")
        values = load_config(preset, file=path.removesuffix(".py"), **given)
        config_lib.load(values.to_dict())
    assert files == [
        "pretrain.py:quickstart",
        "pretrain.py:quickstart",
        "finetune.py:all",
        "finetune.py:ablations",
        "finetune.py:layer_transfer",
        "zero_shot.py",
        "finetune.py:aux_lm_weight",
    ]


def test_commands_start_from_the_models_at_hand(tmp_path):
    def origins(folder):
        (zero_shot,) = commands_of(document(folder).sections[5])
        return [flag.partition("=")[2] for flag in zero_shot[4:6]]

    small = write_pretrained(tmp_path / "pretrain" / "small")
    alone = read_runs([str(tmp_path)], find_studies())
    assert sections.origin_of(alone, "transformer") == str(small)
    write_finished(tmp_path / "finetune")
    assert origins(tmp_path) == ["runs/pretrain/small", "runs/pretrain/lstm"]
    lstm = tmp_path / "pretrain" / "lstm"
    write_pretrained(lstm, model__kind="lstm")
    assert origins(tmp_path) == ["runs/pretrain/small", str(lstm)]


def test_a_run_without_records_has_a_card_but_no_curve(tmp_path):
    write_pretrained(tmp_path / "a", records=(), sessions=())
    models, *_, added = document(tmp_path).sections
    assert "### a" in text_of(models)
    assert "Pre-training:\n\n```bash\npython -m gpt1_jax.main" in text_of(added)


def test_configurations_are_folded_and_versions_listed(report):
    *_, configurations, versions = report.sections
    folded = [b for b in configurations.blocks if isinstance(b, Folded)]
    assert [block.title for block in folded] == [
        "Pre-training: small",
        "Fine-tuning: 1 run",
        "Zero-shot: runs/pretrain/small",
    ]
    assert "| train.num_steps | 8 |" in folded[0].markdown
    rows = text_of(versions).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == [
        "this page",
        "small",
        "1 fine-tuned run",
        "zero-shot of runs/pretrain/small",
    ]
    assert "not recorded" in rows[2] and "jax 0.10.2" in rows[3]


def test_versions_of_fine_tuned_runs_are_those_of_their_sessions(tmp_path):
    write_pretrained(tmp_path / "other")
    write_finished(tmp_path / "a")
    (tmp_path / "other" / "sessions.json").rename(tmp_path / "a" / "sessions.json")
    text = text_of(document(tmp_path / "a").sections[-1])
    assert "| 1 fine-tuned run | gpt1_jax 1.0.0, jax 0.10.2 |" in text


def test_kinds_are_named_where_they_differ(tmp_path):
    write_pretrained(tmp_path / "a")
    write_pretrained(tmp_path / "b", model__kind="lstm")
    runs = [read_pretrained(epath.Path(tmp_path / name)) for name in "ab"]
    assert list(sections.short_names(runs)) == ["a (Transformer)", "b (LSTM)"]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/small", "b/lstm"], ["small", "lstm"]),
        (["a/small", "b/small"], ["a/small", "b/small"]),
        (["a/small", "b/small", "b/c"], ["a/small", "b/small", "b/c"]),
        ([], []),
    ],
)
def test_names_are_long_enough_to_differ(tmp_path, paths, names):
    for path in paths:
        write_pretrained(tmp_path / path)
    runs = [read_pretrained(epath.Path(tmp_path / path)) for path in paths]
    assert list(sections.short_names(runs)) == names


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(5.4, "5 s"), (65, "1 min 5 s"), (3600, "1 h 0 min"), (90_061, "25 h 1 min")],
)
def test_times_have_suitable_units(tmp_path, seconds, shown):
    session = {**SESSION, "seconds": {"training": float(seconds)}}
    write_pretrained(tmp_path / "a", sessions=(session,))
    assert f"| {shown} | 100.0% |" in text_of(document(tmp_path).sections[1])


# --- the paper's tables and figures ----------------------------------------------


def pictures(section):
    return [block.name for block in section.blocks if isinstance(block, Picture)]


@pytest.fixture
def add(tmp_path):
    """A function that adds a finished run and returns what there is."""

    def make(*arguments, **values):
        folder = tmp_path / "runs" / str(len(list(tmp_path.glob("runs/*"))))
        write_finished(folder, *arguments, **values)
        return document(tmp_path / "runs")

    return make


def test_a_model_of_the_hub_is_named_by_its_address(add):
    """Not by the folder in somebody's cache that it was converted to."""
    commit = "0123456789abcdef" * 2 + "01234567"
    cache = f"/home/me/.cache/gpt1_jax/hub/openai-community--openai-gpt/{commit}"
    text = text_of(add("sst2", 0.8, init_from=cache).sections[FINE_TUNING])
    address = f"hf://openai-community/openai-gpt@{commit}"
    assert f"### From {address}, a Transformer at step 8" in text
    assert f"--config.init_from={address} " in text and "/.cache/" not in text


def test_tables_show_the_spread_over_seeds_beside_the_paper(add):
    for seed, score in enumerate((0.75, 0.8, 0.7)):
        add("sst2", score, seed)
    text = text_of(add("sst2", 0.6, transfer_layers="none").sections[FINE_TUNING])
    assert "### From runs/pretrain/small, a Transformer at step 8" in text
    row = "| SST-2 | accuracy | 40 | 75.0 (70.0 to 80.0) | 60.0 | 50.0 | 91.3 | 84.0 |"
    assert row in text
    assert "**Missing:** MNLI, SNLI," in text and "SST-2," not in text


def of_data(*contents, number=64, n=40):
    """A results.json on examples of some content, each a training and a dev split's."""
    digests = dict(zip(("training examples", "dev examples"), contents, strict=True))
    result = finished_result("custom", 0.75, train_examples=number)
    return {
        **result,
        "dev": {**result["dev"], "n": n},
        "content_digests": {"origin": "o", **digests},
    }


def test_runs_on_other_data_or_with_other_settings_have_lines_of_their_own(add):
    shared = {"custom__text": ("a",), "custom__labels": ("x", "y"), "data__dev": "d"}
    first = {"result": of_data("a", "b"), "data__train": "one.jsonl", **shared}
    for seed in range(2):  # the second read the same from another place
        place = f"{seed}/one.jsonl"
        add("custom", seed=seed, **{**first, "data__train": place})
    longer = {**first, "train__num_epochs": 1.5, "data__train": "0/one.jsonl"}
    add("custom", **longer)
    add("custom", **{**first, "result": of_data("c", "b", number=160)})
    edited = {**first, "data__train": "0/one.jsonl", "result": of_data("a", "e")}
    made = add("custom", **edited)
    (section,) = (each for each in made.sections if each.title == "Fine-tuning")
    text = text_of(section)
    rows = [line for line in text.splitlines() if line.startswith("| custom")]
    scores = [row for row in rows if " | accuracy | " in row]
    assert [row.split(" | ")[:5] for row in scores] == [
        ["| custom (1)", "pre-trained", "accuracy", "75.0 (75.0 to 75.0)", "40"],
        ["| custom (2)", "pre-trained", "accuracy", "75.0", "40"],
        ["| custom (3)", "pre-trained", "accuracy", "75.0", "40"],
        ["| custom (4)", "pre-trained", "accuracy", "75.0", "40"],
    ]
    assert not any("Table" in each.title for each in made.sections)
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


def test_a_report_on_ones_own_runs_is_about_them(add, tmp_path):
    """Its title, and no section without content."""
    write_pretrained(tmp_path / "runs" / "pretrain" / "letters")
    made = add("custom", custom__name="reviews", custom__labels=("x", "y"))
    assert "reproduction" not in made.introduction
    titles = [section.title for section in made.sections]
    named = ["Models", "Pre-training", "Fine-tuning", "Configurations", "Versions"]
    assert titles == [*named, "What could be added"]
    assert "**Missing:**" not in "".join(map(text_of, made.sections))
    left = [block.markdown for block in made.sections[-1].blocks]
    assert len(left) == 5
    assert all("\n\n```bash\npython -m gpt1_jax.main --config" in each for each in left)
    runs = read_runs([str(tmp_path / "runs")], find_studies())
    assert sections.make_report(runs, "", "today").title == "letters, reviews"
    assert sections.make_report(runs, "Mine", "today").title == "Mine"
    for name in "abcd":
        write_pretrained(tmp_path / "runs" / "pretrain" / name)
    runs = read_runs([str(tmp_path / "runs")], find_studies())
    title = sections.make_report(runs, "", "today").title
    assert title == "a, b, c, d and 2 more"
    add("sst2")
    runs = read_runs([str(tmp_path / "runs")], find_studies())
    assert sections.make_report(runs, "", "today").title == "A reproduction of GPT-1"


def test_ones_own_task_has_curves_beside_what_it_has_to_beat(add, tmp_path):
    made = add("custom", custom__name="reviews", custom__labels=("x", "y"))
    (section,) = (each for each in made.sections if each.title == "Fine-tuning")
    assert not [block for block in section.blocks if isinstance(block, Picture)]
    records = [{"step": k, "valid_accuracy": k / 10} for k in (2, 4)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "runs" / "0" / "metrics.jsonl").write_text(lines)
    (section,) = (
        each
        for each in document(tmp_path / "runs").sections
        if each.title == "Fine-tuning"
    )
    (picture,) = (block for block in section.blocks if isinstance(block, Picture))
    (axes,) = picture.draw().axes
    assert [list(axes.lines[-1].get_xdata()), axes.get_title()] == [[2, 4], "reviews"]
    assert list(axes.lines[-1].get_ydata()) == [20, 40]
    (line,) = axes.lines[:-1]
    assert (line.get_label(), line.get_ydata()[0]) == ("most frequent label", 50)


def test_an_origin_that_was_trained_again_in_its_place_is_another(add):
    def of_origin(digest):
        digests = {"origin": digest, "training examples": "a", "dev examples": "b"}
        return finished_result("sst2", 0.75, content_digests=digests)

    add(result=of_origin("a" * 64))
    text = text_of(add(result=of_origin("a" * 64), seed=1).sections[FINE_TUNING])
    assert "a Transformer at step 8\n" in text
    text = text_of(add(result=of_origin("b" * 64)).sections[FINE_TUNING])
    for letter in "ab":
        assert f"a Transformer at step 8, content {12 * letter}\n" in text


def test_each_origin_has_tables_of_its_own(add):
    add("cola", 0.1)
    report = add("cola", 0.2, init_from="runs/pretrain/large")
    for section in (FINE_TUNING, ABLATIONS):
        text = text_of(report.sections[section])
        assert "### From runs/pretrain/small" in text
        assert "### From runs/pretrain/large" in text
    assert "Models are not mixed" in text
    text = text_of(report.sections[FINE_TUNING])
    assert text.count("Ours is measured on the dev splits") == 1


def test_tables_of_the_paper_leave_out_runs_on_babylms_data(add):
    before = add("cola", 0.5)
    after = add("babylm", 0.9, data__dir="a", tasks=("rte",), head__aux_lm_weight=0.5)
    tables, text = (text_of(each.sections[FINE_TUNING]) for each in (before, after))
    note = (
        "Tables 2 to 5 leave out 1 fine-tuned run on BabyLM's data, which is a part of "
        "each task's.\n\n"
    )
    assert note in text and text.replace(note, "") == tables
    assert text_of(after.sections[ABLATIONS]) == text_of(before.sections[ABLATIONS])


def test_table_5_names_the_columns_that_are_missing(add):
    report = add("cola", 0.1)
    text = text_of(report.sections[ABLATIONS])
    assert "without pre-training, without the auxiliary objective, with an LSTM" in text
    assert "Models are not mixed" not in text


def test_layers_transferred_are_drawn_and_tabled(add):
    for layers in "012":
        report = add("rte", 0.5 + int(layers) / 10, transfer_layers=layers)
    section = report.sections[LAYERS]
    assert pictures(section) == ["layer_transfer"]
    assert "50.0 | 60.0 | 70.0 |" in text_of(section)
    assert "RACE (dev) rises from about 40 to 60" in text_of(section)
    for layers in "01":
        other = {"init_from": "runs/pretrain/large", "transfer_layers": layers}
        report = add("rte", 0.5, **other)
    names = pictures(report.sections[LAYERS])
    assert names == ["layer_transfer", "layer_transfer_2"]


def test_weights_are_drawn_and_tabled(add):
    for weight in (0.0, 0.5):
        report = add("rte", 0.5 + weight / 5, head__aux_lm_weight=weight)
    section = report.sections[WEIGHTS]
    assert pictures(section) == ["aux_lm_weight"]
    assert "50.0 | 60.0 |" in text_of(section)
    assert "74.7 with the auxiliary objective and 75.0 without" in text_of(section)


def test_sections_without_runs_keep_the_words_on_the_paper(add):
    report = add("copa", 0.5)
    for section, paper in (
        (LAYERS, "from about 40 to 60"),
        (WEIGHTS, "75.0 without"),
        (ZERO_SHOT, "0.68 in sentiment"),
    ):
        text = text_of(report.sections[section])
        assert "**Missing:**" in text and paper in text
        assert pictures(report.sections[section]) == []


# --- fine-tuned runs by origin --------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A function from values of the configuration to a finished run."""
    made = []

    def make(task="sst2", score=0.75, seed=0, kind="transformer", **overrides):
        folder = tmp_path / str(len(made))
        write_finished(folder, task, score, seed, **overrides)
        found = read_finished(epath.Path(folder))
        config = dataclasses.replace(
            found.config, model=dataclasses.replace(found.config.model, kind=kind)
        )
        made.append(found._replace(config=config))
        return made[-1]

    return make


def test_runs_are_grouped_by_origin(run):
    small, large = run(), run(init_from="runs/pretrain/large")
    lstm = run(init_from="runs/pretrain/lstm", kind="lstm")
    found = sections.by_origin([small, large, lstm, small])
    assert [len(runs) for runs in found.values()] == [2, 1, 1]
    first, _, last = found
    assert first.heading == "From runs/pretrain/small, a Transformer at step 8"
    assert last.heading == "From runs/pretrain/lstm, an LSTM at step 8"


def test_runs_from_scratch_belong_to_each_origin_of_their_architecture(run):
    """Those with the same tokenizer and sizes, whichever folder and step they name."""

    def with_tokenizer(made, digest):
        file = made.folder / "tokenizer" / "tokenizer.json"
        write_json(file, {"content_digest": digest})
        return made

    first, later = run(), run(init_from="runs/pretrain/later")
    other = run(init_from="runs/pretrain/other")
    scratch = run(init_from="runs/pretrain/small", transfer_layers="none")
    for each, digest in ((first, "a"), (later, "a"), (other, "b"), (scratch, "a")):
        with_tokenizer(each, digest)
    found = sections.by_origin([scratch, first, later, other])
    assert list(found.values()) == [[scratch, first], [scratch, later], [other]]
    ((alone, runs),) = sections.by_origin([scratch]).items()
    assert runs == [scratch]
    assert alone.heading == (
        "From scratch, a Transformer with the tokenizer and sizes of "
        "runs/pretrain/small"
    )
    small, large = (
        made._replace(
            config=dataclasses.replace(
                made.config,
                model=dataclasses.replace(made.config.model, num_layers=layers),
            )
        )
        for made, layers in ((scratch, 2), (first, 4))
    )
    assert list(sections.by_origin([small, large]).values()) == [[small], [large]]


def test_names_of_origins_are_escaped(run):
    (origin,) = sections.by_origin([run(init_from="<b>*a*")])
    assert origin.heading.startswith(r"From \<b\>\*a\*, a")


def test_tables_hold_runs_as_in_the_paper(run):
    whole, four = run(score=0.8), run(score=0.7, transfer_layers="4")
    none = run(score=0.6, transfer_layers="none")
    others = [run(transfer_layers="2"), run(head__aux_lm_weight=0.0)]
    assert sections.as_in_paper([whole, none, four, *others]) == [whole, four, none]


def test_only_runs_on_the_most_training_examples_are_kept(run):
    some = run(score=0.1, data__max_train_examples=10)
    more = run(score=0.2, data__max_train_examples=20)
    all_of_it = run(score=0.3, data__max_train_examples=0)
    assert sections.as_in_paper([some, more]) == [more]
    assert sections.as_in_paper([some, all_of_it, more]) == [all_of_it]
    other = run(data__max_train_examples=5, data__dir="other")
    assert sections.as_in_paper([some, more, other]) == [more, other]


def test_a_table_5_holds_one_transformer_and_one_lstm(run):
    small, large = run(), run(init_from="runs/pretrain/large")
    lstm = run(init_from="runs/pretrain/lstm", kind="lstm")
    other = run("copa")  # not a column of Table 5
    tables = sections.for_table_5([small, large, lstm, other])
    assert [runs for _, runs in tables] == [[small, lstm], [large, lstm]]
    assert tables[0][0].endswith("step 8; LSTM: runs/pretrain/lstm")
    assert sections.for_table_5([small])[0][1] == [small]
    assert sections.for_table_5([lstm])[0][1] == [lstm]
    assert sections.for_table_5([other]) == []


def test_ablations_without_runs_are_named(run):
    full, scratch = run(), run(transfer_layers="none")
    plain = run(head__aux_lm_weight=0.0)
    lstm = run(kind="lstm")
    assert sections.missing_ablations([full, scratch, plain, lstm]) == []
    for left, word in (
        (full, "with the auxiliary"),
        (scratch, "without pre-training"),
        (plain, "without the auxiliary"),
        (lstm, "LSTM"),
    ):
        others = [each for each in (full, scratch, plain, lstm) if each is not left]
        (line,) = sections.missing_ablations(others)
        assert word in line


def test_names_of_tasks_and_origins_are_escaped(add):
    for task in ("<i>", "cola"):
        report = add(task, init_from="a|b")
    assert r"| \<i\> | accuracy |" in text_of(report.sections[FINE_TUNING])
    table_5 = text_of(report.sections[ABLATIONS])
    assert r"Ours start from the Transformer of a\|b." in table_5


# --- configurations --------------------------------------------------------------


def test_only_values_that_differ_from_the_preset_are_listed(tmp_path):
    write_pretrained(tmp_path / "a", seed=3, data__source="text", data__train="<b>|*")
    config = read_pretrained(epath.Path(tmp_path / "a")).config
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


@pytest.mark.parametrize("preset", ["no such", "", "__import__"])
def test_an_unknown_preset_is_compared_with_the_default(tmp_path, preset):
    write_pretrained(tmp_path / "a", preset=preset)
    config = read_pretrained(epath.Path(tmp_path / "a")).config
    assert sections.changed_values(config)["model.num_layers"] == 4  # 12 by default


def test_fine_tuned_runs_that_are_alike_share_a_line(tmp_path):
    for number, (task, seed, rate) in enumerate(
        [("sst2", 0, 1e-4), ("sst2", 1, 1e-4), ("cola", 0, 1e-4), ("cola", 0, 2e-4)]
    ):
        write_finished(
            tmp_path / str(number), task, seed=seed, optimizer__learning_rate=rate
        )
    text = sections.describe_configs(
        [read_finished(epath.Path(tmp_path / str(k))).config for k in range(4)]
    )
    groups, shared = text.split("\n\nAll of them:\n\n")
    assert groups.splitlines()[0] == "| tasks (seeds) | optimizer.learning_rate |"
    assert groups.splitlines()[2:] == [
        "| sst2 (0, 1); cola (0) | 0.0001 |",
        "| cola (0) | 0.0002 |",
    ]
    assert "| init_from | runs/pretrain/small |" in shared
    assert "num_layers" not in text and "suite." not in text


def test_a_value_of_the_file_is_listed_beside_one_that_differs(tmp_path):
    for number, weight in enumerate([0.5, 0.0]):  # 0.5 is the file's
        write_finished(tmp_path / str(number), "sst2", head__aux_lm_weight=weight)
    text = sections.describe_configs(
        [read_finished(epath.Path(tmp_path / str(k))).config for k in range(2)]
    )
    assert text.splitlines()[2:4] == ["| sst2 (0) | 0.5 |", "| sst2 (0) | 0.0 |"]


def test_a_run_with_the_values_of_the_file_says_so(tmp_path):
    given = {"train__num_steps": 1500, "optimizer__warmup_steps": 150}
    write_pretrained(tmp_path / "a", **given)
    config = read_pretrained(epath.Path(tmp_path / "a")).config
    assert sections.describe_config(config).endswith(
        "All values are those of the file."
    )


def test_runs_that_took_over_fewer_layers_have_lines_of_their_own(add):
    own = {"custom__name": "reviews", "custom__labels": ("x", "y")}
    for number, layers in enumerate(("0", "1", "all", "none")):
        made = add("custom", 0.5 + number / 10, transfer_layers=layers, **own)
    (section,) = (each for each in made.sections if each.title == "Fine-tuning")
    lines = text_of(section).split("\n")
    rows = [line.split(" | ") for line in lines if "| reviews" in line]
    scores = {row[1]: row[3] for row in rows if row[2] == "accuracy"}
    assert scores == {
        "0 of 4 layers": "50.0",
        "1 of 4 layers": "60.0",
        "from scratch": "80.0",
        "pre-trained": "70.0",
    }
