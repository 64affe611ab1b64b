"""The looks of the report's figures: on a light page and on a dark one."""

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _style(ink: str, guide: str, paper: str) -> dict[str, Any]:
    """The settings of matplotlib for a colour of text, of guides and of the page."""
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
        "svg.fonttype": "path",  # looks the same without the font
        "svg.hashsalt": "gpt1_jax",  # the same file each time
    }


# The colours of the page, in templates/style.css.
LIGHT = _style(ink="#1f2328", guide="#7b838c", paper="#ffffff")
_BRIGHT = ["#6cb6ff", "#ffab5e", "#6fd08c", "#ff8a80", "#c9a4f5", "#d3a688", "#f59bd5"]
DARK = {
    **_style(ink="#e6e8eb", guide="#8d96a0", paper="#16191d"),
    "axes.prop_cycle": f"cycler(color={_BRIGHT})",
}


def drawn(draw: "Callable[[], Figure]", style: Mapping[str, Any], kind: str) -> bytes:
    """A figure in a style.

    Args:
      draw: makes the figure.
      style: `LIGHT` or `DARK`.
      kind: "svg" or "png".
    """
    import matplotlib

    settings: Any = dict(style)
    file = io.BytesIO()
    with matplotlib.rc_context(settings):
        # Neither the date nor the version of matplotlib.
        nothing = {"svg": {"Date": None}, "png": {"Software": None}}
        draw().savefig(file, format=kind, metadata=nothing[kind])
    return file.getvalue()
