"""What all figures share: their style, how they are drawn and saved, and axes of steps.

Every figure that a job writes is drawn in `STYLE` on top of matplotlib's defaults, so
that a user's matplotlibrc neither changes nor breaks it. Figures that a notebook gets
from `report.figures` and `report.notebook_figures` follow the user's style instead.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from etils import epath

from gpt1_jax.config.checks import FIGURE_SUFFIXES
from gpt1_jax.data.files import locate, write_whole
from gpt1_jax.runs.console import say

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GUIDE = "0.5"  # the grey of guide lines and numbers, visible on any background
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # for the curves, in turn
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
BARS: dict[str, Any] = {"elinewidth": 1, "capsize": 2}  # of standard errors

# The style sheet: sizes in points, of figures that are printed as large as they are.
STYLE: dict[str, Any] = {
    "figure.dpi": 200,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "figure.titlesize": 10,
    "figure.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "lines.markersize": 5,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,  # text that can be edited and searched
    "svg.fonttype": "path",  # looks the same without the font
    "svg.hashsalt": "gpt1_jax",  # the same file each time
}
# Without the date and the version of matplotlib.
_METADATA: dict[str, Any] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
_LABEL_WIDTH = 0.64  # of a digit, as a fraction of the font's size


class Picture(NamedTuple):
    """A figure to be drawn, for files and reports."""

    name: str  # of its file, without the ending
    alt: str  # a description, plain text
    draw: "Callable[[], Figure]"  # called once for each style
    rows: Any = None  # its numbers, as `save_figure` takes them


def new_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> "Figure":
    """An empty figure of a size in inches, without pyplot, which picks a backend."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


# --- drawing and saving -------------------------------------------------------------


def figure_path(folder: epath.Path, name: str, figure: str) -> epath.Path:
    """Where a job writes a figure.

    Args:
      folder: the job's output folder.
      name: of the figure, without an ending.
      figure: the key `figure`: a file, or a suffix alone, such as ".svg", for
        `plots/NAME.svg` in the folder.
    """
    if figure in FIGURE_SUFFIXES:
        return folder / "plots" / f"{name}{figure}"
    return locate(figure)


def save_figure(
    draw: "Callable[[], Figure]",
    path: epath.Path,
    rows: "pd.DataFrame | Iterable[Mapping[str, Any]] | None" = None,
) -> epath.Path | None:
    """Draws and writes a figure, and its numbers beside it; never ends the job.

    Args:
      draw: makes the figure. It is called here, in `STYLE`: whatever fails in drawing
        or saving becomes a warning of one line.
      path: local or gs://; .png, .svg or .pdf at its end decides the format.
      rows: the numbers that the figure shows, for a file of the same name that ends
        in .csv.

    Returns:
      The path; None if there is no picture.
    """
    try:
        if rows is not None:
            import pandas as pd

            numbers = pd.DataFrame(rows).to_csv(None, index=False, lineterminator="\n")
            write_whole(path.with_suffix(".csv"), numbers)
        write_whole(path, render_figure(draw, path.suffix, str(path)))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[0]:.200}"
        say(f"WARNING: no figure {path}: {reason}")
        return None
    return path


def render_figure(
    draw: "Callable[[], Figure]",
    suffix: str,
    name: str = "",
    style: Mapping[str, Any] | None = None,
) -> bytes:
    """The bytes of a figure, the same for the same figure.

    Letters that matplotlib's font lacks are of the user's `font.sans-serif`. Where that
    lacks them too they become boxes, and a warning says which they are.

    Args:
      draw: makes the figure; called in `STYLE`.
      suffix: ".png", ".svg" or ".pdf".
      name: of the figure, for the warning; "" gives none.
      style: further settings of matplotlib, such as colours.
    """
    import matplotlib.style
    from matplotlib.font_manager import get_font_names

    installed, users = set(get_font_names()), matplotlib.rcParams["font.sans-serif"]
    fonts = {"font.family": ["DejaVu Sans", *filter(installed.__contains__, users)]}
    file = io.BytesIO()
    with (
        matplotlib.style.context(["default", {**STYLE, **fonts, **(style or {})}]),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        draw().savefig(file, format=suffix[1:], metadata=_METADATA[suffix])
    missing: dict[str, None] = {}
    for each in caught:
        if found := re.match(r"Glyph (\d+) .* missing from", str(each.message)):
            missing[chr(int(found[1]))] = None
        else:
            warnings.warn_explicit(
                each.message, each.category, each.filename, each.lineno
            )
    if missing and name:
        letters = " ".join(list(missing)[:20]) + " .." * (len(missing) > 20)
        say(
            f"WARNING: {name} has boxes for letters that its font lacks: {letters}; "
            "name a font that has them in matplotlibrc, as font.sans-serif."
        )
    return file.getvalue()


# --- styles of a page -----------------------------------------------------------


def _page_style(ink: str, guide: str, paper: str) -> dict[str, Any]:
    """Settings of matplotlib for the colours of text, guides and page."""
    return {
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "axes.edgecolor": guide,
        "xtick.color": guide,
        "ytick.color": guide,
        "grid.color": guide,
        "legend.edgecolor": guide,
        "legend.facecolor": paper,
        "figure.facecolor": paper,
        "axes.facecolor": paper,
        "savefig.facecolor": paper,
    }


# The colours of the page, in templates/style.css.
LIGHT = _page_style(ink="#1f2328", guide="#7b838c", paper="#ffffff")
_BRIGHT = ["#6cb6ff", "#ffab5e", "#6fd08c", "#ff8a80", "#c9a4f5", "#d3a688", "#f59bd5"]
DARK = {
    **_page_style(ink="#e6e8eb", guide="#8d96a0", paper="#16191d"),
    "axes.prop_cycle": f"cycler(color={_BRIGHT})",
}


# --- axes and legends ---------------------------------------------------------------


def scale_updates(axes: "Axes", steps: Iterable[int]) -> None:
    """Makes an axis of updates logarithmic, with a place for step 0 if it is there.

    Its ticks are steps: all of them, or as many as can be read without touching.

    Args:
      axes: of a figure of its final size.
      steps: those at which something is drawn; at least one.
    """
    steps = sorted({int(step) for step in steps})
    if steps[0] == 0:
        first = steps[1] if len(steps) > 1 else 1  # from here on it is logarithmic
        axes.set_xscale("symlog", linthresh=first, linscale=0.5)
        axes.set_xlim(-0.3 * first, 1.3 * max(first, steps[-1]))
    else:
        axes.set_xscale("log")
        axes.set_xlim(steps[0] / 1.3, 1.3 * steps[-1])
    ticks = _readable(axes, steps)
    axes.set_xticks(ticks, [f"{step:,}" for step in ticks])
    axes.set_xticks([], minor=True)


def label_updates(axes: "Axes", steps: Iterable[int]) -> None:
    """Labels a linear axis of updates: all steps if there is room, else round ones.

    Args:
      axes: of a figure of its final size, in which all is drawn.
      steps: those at which something is drawn.
    """
    from matplotlib.ticker import MaxNLocator

    steps = sorted({int(step) for step in steps})
    if _readable(axes, steps) == steps:
        axes.set_xticks(steps)
    else:
        label = 2 + len(f"{steps[-1]:,}")  # with a gap
        ticks = max(1, int(_width_in_letters(axes) / label))
        axes.xaxis.set_major_locator(
            MaxNLocator(ticks, integer=True, steps=[1, 2, 5, 10])
        )
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _readable(axes: "Axes", steps: Sequence[int]) -> list[int]:
    """The last step, and of those before it what has room for a label."""
    low, *places, high = axes.xaxis.get_transform().transform(
        [axes.get_xlim()[0], *steps, axes.get_xlim()[1]]
    )
    width = _width_in_letters(axes)
    ticks: list[int] = []
    free = float("inf")  # the left end of the label before
    for step, place in reversed(list(zip(steps, places, strict=True))):
        at = (place - low) / (high - low) * width
        half = len(f"{step:,}") / 2
        if at + half <= free:
            ticks.insert(0, step)
            free = at - half - 2
    return ticks


def _width_in_letters(axes: "Axes") -> float:
    """How many letters of tick labels are as wide as the axes."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    letter = _LABEL_WIDTH * FontProperties(size=rcParams["xtick.labelsize"]).get_size()
    return axes.get_window_extent().width / axes.figure.dpi * 72 / letter


def run_style(is_baseline: bool) -> dict[str, Any]:
    """The style of a run's lines: a baseline's are dashed, with hollow markers."""
    if is_baseline:
        return {"markersize": 5, "linestyle": "--", "markerfacecolor": "none"}
    return {"markersize": 5, "linestyle": "-"}


def add_legend(figure: "Figure", place: Any, styles: dict[str, dict[str, Any]]) -> None:
    """Adds a legend of lines, by label, each in its style."""
    from matplotlib.lines import Line2D

    # Labels of their own, since matplotlib omits those of lines that begin with "_".
    lines = [Line2D([], [], **style) for style in styles.values()]
    legend = figure.legend(lines, list(styles), loc=place, handlelength=3)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names of folders
