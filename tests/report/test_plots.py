"""How figures of jobs are drawn, saved and fail."""

import itertools

import matplotlib
import pandas as pd
import pytest
from etils import epath

from gpt1_jax.report.plots import (
    figure_path,
    label_updates,
    new_figure,
    render_figure,
    save_figure,
    scale_updates,
)

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def small_figure(title="title"):
    figure = new_figure(2, 2)
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4])
    axes.set_title(title)
    return figure


@pytest.mark.parametrize("suffix", MAGIC)
def test_suffix_decides_the_format(tmp_path, suffix):
    path = figure_path(epath.Path(tmp_path), "a", suffix)
    assert path == epath.Path(tmp_path) / "plots" / f"a{suffix}"
    assert save_figure(small_figure, path) == path
    assert path.read_bytes().startswith(MAGIC[suffix])
    other = figure_path(epath.Path(tmp_path), "a", f"other/b{suffix}")
    assert other == epath.Path(f"other/b{suffix}")


def test_numbers_are_written_beside_the_figure(tmp_path):
    path = epath.Path(tmp_path) / "a.svg"
    numbers = [{"step": 1, "loss": 0.1 + 0.2}, {"step": 2, "loss": None}]
    for rows in (numbers, pd.DataFrame(numbers)):
        save_figure(small_figure, path, rows)
        text = path.with_suffix(".csv").read_text()
        assert text == "step,loss\n1,0.30000000000000004\n2,\n"


def test_a_figure_that_fails_or_cannot_be_written_is_one_warning(tmp_path, capsys):
    def fail():
        raise ValueError("first line\nsecond line")

    path = epath.Path(tmp_path) / "a.png"
    assert save_figure(fail, path, [{"step": 1}]) is None
    assert capsys.readouterr().out == (
        f"WARNING: no figure {path}: ValueError: first line\n"
    )
    assert not path.exists() and path.with_suffix(".csv").exists()
    (tmp_path / "plots").write_text("a file")
    path = epath.Path(tmp_path) / "plots" / "a.png"
    assert save_figure(small_figure, path, [{"step": 1}]) is None
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"WARNING: no figure {path}: ")


@pytest.mark.filterwarnings("error")
def test_letters_that_the_users_font_lacks_are_said_once(tmp_path, capsys):
    path = epath.Path(tmp_path) / "a.png"
    assert save_figure(lambda: small_figure("电脑电\u24b6"), path) == path
    (line,) = capsys.readouterr().out.splitlines()
    letters = "boxes for letters that its font lacks: 电 脑 \u24b6;"
    assert line.startswith(f"WARNING: {path} has {letters}")
    with matplotlib.rc_context({"font.sans-serif": ["No Such Font", "STIXGeneral"]}):
        save_figure(lambda: small_figure("\u24b6"), path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("suffix", MAGIC)
def test_settings_of_the_user_do_not_change_a_figure(suffix):
    plain = render_figure(small_figure, suffix, "a")
    before = dict(matplotlib.rcParams)
    settings = {"font.size": 30, "axes.facecolor": "black", "savefig.dpi": 10}
    with matplotlib.rc_context({**settings, "text.usetex": True}):
        assert render_figure(small_figure, suffix, "a") == plain
    assert dict(matplotlib.rcParams) == before


def ticks(steps, width=4.0):
    """The labels of an axis of updates, and whether any two touch."""
    figure = new_figure(width, 2)
    axes = figure.subplots()
    axes.plot(steps, steps)
    scale_updates(axes, steps)
    figure.savefig("/dev/null", format="png")
    labels = axes.get_xticklabels()
    boxes = sorted((each.get_window_extent() for each in labels), key=lambda b: b.x0)
    apart = all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    assert axes.get_xticks(minor=True).size == 0
    return [each.get_text() for each in labels], apart


@pytest.mark.parametrize(
    ("steps", "labels"),
    [
        ([3, 6, 11], ["3", "6", "11"]),
        (range(50, 1501, 50), ["0", "500", "1,000", "1,500"]),
    ],
)
def test_a_linear_axis_has_its_steps_or_round_ones(steps, labels):
    axes = new_figure(4, 2).subplots()
    axes.plot(steps, steps)
    label_updates(axes, steps)
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert [axes.xaxis.get_major_formatter()(tick) for tick in ticks] == labels


@pytest.mark.parametrize("width", [2, 4, 12])
def test_steps_are_labelled_as_far_as_there_is_room(width):
    assert ticks([0, 10, 100, 1200]) == (["0", "10", "100", "1,200"], True)
    assert ticks([7]) == (["7"], True)
    steps = [0, *range(100, 30_001, 100)]
    labels, apart = ticks(steps, width)
    assert apart and len(labels) >= 2
    assert labels[-1] == "30,000"
    assert {int(label.replace(",", "")) for label in labels} <= {*steps}
