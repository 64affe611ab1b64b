"""How figures of jobs are drawn, saved and fail."""

import matplotlib
import pandas as pd
import pytest
from etils import epath

from gpt1_jax.report.plots import figure_path, new_figure, render_figure, save_figure

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def small_figure(title="title"):
    figure = new_figure(2, 2, layout=None)
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


def test_letters_that_the_font_lacks_are_of_the_users_font_or_said(tmp_path, capsys):
    path = epath.Path(tmp_path) / "a.png"
    with matplotlib.rc_context({"font.sans-serif": ["No Such Font", "STIXGeneral"]}):
        save_figure(lambda: small_figure("\u24b6"), path)
    assert capsys.readouterr().out == ""
    save_figure(lambda: small_figure("\u24b6\u24b6"), path)
    (line,) = capsys.readouterr().out.splitlines()
    assert f"WARNING: {path} has boxes for letters" in line and "lacks: \u24b6;" in line


@pytest.mark.parametrize("suffix", MAGIC)
def test_settings_of_the_user_do_not_change_a_figure(suffix):
    plain = render_figure(small_figure, suffix, "a")
    before = dict(matplotlib.rcParams)
    settings = {"font.size": 30, "axes.facecolor": "black", "savefig.dpi": 10}
    with matplotlib.rc_context({**settings, "text.usetex": True}):
        assert render_figure(small_figure, suffix, "a") == plain
    assert dict(matplotlib.rcParams) == before
