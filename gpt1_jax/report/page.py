"""Writes a report: one HTML page that fetches nothing, and Markdown with pictures."""

import base64
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import markupsafe
from etils import epath
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from gpt1_jax.data.files import remove_partial, write_whole
from gpt1_jax.report.markdown import code_block, escape
from gpt1_jax.report.plots import DARK, LIGHT, render_figure
from gpt1_jax.runs.folder import NAMES
from gpt1_jax.runs.outputs import check_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HTML_FILE, MARKDOWN_FILE, PLOTS = "report.html", "report.md", "plots"
_PACKAGE = "gpt1_jax.report"
_PICTURES = ("finetuning", "layer_transfer", "aux_lm_weight")  # beside those of studies


class Text(NamedTuple):
    """A block of Markdown. Text from run folders is escaped or in a code block."""

    markdown: str
    command: str = ""  # that makes what it says is missing


class Picture(NamedTuple):
    """A block that is a figure."""

    name: str  # of its file, without the ending
    alt: str  # a description
    draw: "Callable[[], Figure]"  # called once for each style


class Folded(NamedTuple):
    """A block of Markdown that a reader unfolds."""

    title: str  # plain text
    markdown: str


Block = Text | Picture | Folded


class ReportSection(NamedTuple):
    """A heading and the blocks below it."""

    title: str
    blocks: Sequence[Block]

    @property
    def missing_command(self) -> str:
        """The command that would fill it; "" if there is something in it."""
        first = self.blocks[0] if self.blocks else None
        return first.command if isinstance(first, Text) else ""

    @property
    def anchor(self) -> str:
        """The fragment of its address, made from the title as on GitHub."""
        kept = re.sub(r"[^\w\- ]", "", self.title.lower())
        return kept.replace(" ", "-")


class Report(NamedTuple):
    """A report, before it becomes a page."""

    title: str  # plain text
    introduction: str  # Markdown
    sections: Sequence[ReportSection]

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, in order."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Picture)]


_KINDS = {Text: "text", Picture: "picture", Folded: "folded"}


def missing(what: str, command: str) -> Text:
    """Says what is missing, and the command that makes it."""
    block = code_block(command, "bash")
    return Text(f"**Missing:** {what}. Made by:\n\n{block}", command)


def check_folder(folder: epath.Path) -> None:
    """Refuses a folder that cannot be written, or that has files of a run.

    Raises:
      FileExistsError: if it is a file, or a run folder, which has plots of its own.
      OSError: if it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name another --workdir.")
    found = sorted(name for name in NAMES - {PLOTS} if (folder / name).exists())
    if found:
        raise FileExistsError(
            f"{folder} is a run folder: it holds {', '.join(found[:5])}; name another "
            "--workdir."
        )
    check_output(folder / HTML_FILE, "--workdir=DIR")


def write_report(report: Report, folder: epath.Path, studies: Iterable[str]) -> None:
    """Writes `report.html`, `report.md` and `plots/`, in place of earlier ones.

    Args:
      report: title, introduction and sections.
      folder: made if missing; further pictures of an earlier report are removed, unless
        `plots/` is a link.
      studies: the names of the pictures of studies.
    """
    html, text = _html(report), _markdown(report)
    pngs = {
        each.name: render_figure(each.draw, ".png", each.name, LIGHT)
        for each in report.pictures
    }
    remove_partial(folder)
    for path in _earlier_pictures(folder / PLOTS, studies):
        if path.stem not in pngs:
            path.unlink(missing_ok=True)
    for name, png in pngs.items():
        write_whole(folder / PLOTS / f"{name}.png", png)
    write_whole(folder / MARKDOWN_FILE, text)
    write_whole(folder / HTML_FILE, html)


def _earlier_pictures(plots: epath.Path, studies: Iterable[str]) -> list[epath.Path]:
    """The pictures in a folder that reports have made, by their names."""
    if not plots.is_dir() or os.path.islink(plots):
        return []
    several = "|".join(map(re.escape, (*_PICTURES, *studies)))
    picture = re.compile(rf"(pretraining|({several})(_\d+)?)\.png")
    return [path for path in plots.iterdir() if picture.fullmatch(path.name)]


def _markdown(report: Report) -> str:
    environment = templates(_PACKAGE, autoescape=False)
    environment.filters["escaped"] = escape
    template = environment.get_template("report.md.jinja")
    return template.render(report=report, kind=_kind, plots=PLOTS)


def _html(report: Report) -> str:
    renderer = _renderer()
    environment = templates(_PACKAGE, autoescape=True)
    environment.filters["html"] = lambda text: markupsafe.Markup(renderer.render(text))
    environment.filters["light_uri"] = lambda picture: _svg_uri(picture, LIGHT)
    environment.filters["dark_uri"] = lambda picture: _svg_uri(picture, DARK)
    return environment.get_template("report.html.jinja").render(
        report=report,
        kind=_kind,
        style=markupsafe.Markup(read_template(_PACKAGE, "style.css")),
    )


def _svg_uri(picture: Picture, style: Mapping[str, Any]) -> str:
    """A picture as a URI that holds it."""
    svg = base64.b64encode(
        render_figure(picture.draw, ".svg", picture.name, style)
    ).decode()
    return f"data:image/svg+xml;base64,{svg}"


def read_template(package: str, name: str) -> str:
    """A file of a package's templates, as it is."""
    environment = templates(package, autoescape=False)
    return environment.loader.get_source(environment, name)[0]


def templates(package: str, autoescape: bool) -> Any:
    """The environment of the templates in a package, for pages."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _kind(block: object) -> str:
    return _KINDS[type(block)]


def _renderer() -> MarkdownIt:
    """Converts Markdown to HTML without keeping its HTML or fetching its images."""
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    renderer.disable("image")
    rules: dict[str, Any] = renderer.renderer.rules  # type: ignore[attr-defined]
    scrolling = '<div class="table" role="region" aria-label="table" tabindex="0">'
    rules["table_open"] = lambda *_: f"{scrolling}<table>\n"
    rules["table_close"] = lambda *_: "</table></div>\n"
    renderer.core.ruler.push("headings_in_tables", _span_headings)
    return renderer


def _span_headings(state: StateCore) -> None:
    """Lets the first cell of a row span the table if all others are empty."""
    kept: list[Token] = []
    for token in state.tokens:
        kept.append(token)
        if token.type != "tr_close":
            continue
        begin = max(i for i, each in enumerate(kept) if each.type == "tr_open")
        row = kept[begin + 1 : -1]
        cells = [each for each in row if each.type == "inline"]
        if cells[1:] and cells[0].content and not any(c.content for c in cells[1:]):
            row[0].attrSet("colspan", str(len(cells)))
            kept[begin + 1 : -1] = row[:3]  # the cell's opening, content and closing
    state.tokens = kept
