"""The sections of a report."""

import pytest
from etils import epath
from made_up_runs import SESSION, write_finished, write_pretrained, write_zero_shot

from gpt1_jax.report import commands, sections
from gpt1_jax.report.gather import gather
from gpt1_jax.report.page import Folded, Text
from gpt1_jax.runs.past_runs import read_pretrained

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


def document(*folders):
    material = gather([str(folder) for folder in folders])
    return sections.document(material, "A title", "23 November 2026")


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


def test_a_run_from_another_goes_on_where_that_one_ends(tmp_path):
    source = write_pretrained(tmp_path / "first")
    write_pretrained(tmp_path / "more", init_from=str(source))
    report = document(tmp_path)
    (axes,) = report.pictures[0].draw().axes
    points = [list(line.get_xdata()) for line in axes.lines]
    assert points == 2 * [[4096, 8192]] + 2 * [[12288, 16384]]
    assert "epochs: 2.00; before that, 8,192 tokens" in text_of(report.sections[0])
    row = next(x for x in text_of(report.sections[1]).split("\n") if "| more |" in x)
    assert "| 8,192 |" in row, "its own alone"


def test_what_is_not_there_is_said_with_its_command(tmp_path):
    write_finished(tmp_path / "copa", "copa")
    first, second, *others = document(tmp_path / "copa").sections
    for section in (first, second):
        assert "**Missing:**" in text_of(section)
        assert commands.pretrain() in text_of(section)
    wanted = [commands.finetune, commands.ablations, commands.layer_transfer]
    wanted += [commands.zero_shot, commands.aux_lm_weight]
    models = commands.Models("runs/pretrain/small")
    for section, command in zip(others, wanted, strict=False):
        text = text_of(section)
        assert "**Missing:**" in text and command(models) in text


def test_a_run_without_records_has_a_card_but_no_curve(tmp_path):
    write_pretrained(tmp_path / "a", records=(), sessions=())
    models, training, *_ = document(tmp_path).sections
    assert "### a" in text_of(models) and "**Missing:**" in text_of(training)


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
    assert "| 1 fine-tuned run | gpt1_jax 0.2.0, jax 0.10.2 |" in text


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/small", "b/lstm"], ["small", "lstm"]),
        (["a/small", "b/small"], ["a/small", "b/small"]),
        (["a/small", "b/small", "b/c"], ["a/small", "b/small", "b/c"]),
        ([], []),
    ],
)
def test_names_are_as_long_as_it_takes_to_differ(tmp_path, paths, names):
    for path in paths:
        write_pretrained(tmp_path / path)
    runs = [read_pretrained(epath.Path(tmp_path / path)) for path in paths]
    assert sections.short_names(runs) == names


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(5.4, "5 s"), (65, "1 min 5 s"), (3600, "1 h 0 min"), (90_061, "25 h 1 min")],
)
def test_times_are_said_in_their_units(tmp_path, seconds, shown):
    session = {**SESSION, "seconds": {"training": float(seconds)}}
    write_pretrained(tmp_path / "a", sessions=(session,))
    assert f"| {shown} | 100.0% |" in text_of(document(tmp_path).sections[1])
