"""A report as files: one HTML page that fetches nothing, and Markdown with pictures."""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import markupsafe
from etils import epath
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from gpt1_jax.data.files import (
    check_output,
    remove_partial,
    whole_name,
    write_whole,
)
from gpt1_jax.report.figures import DARK, LIGHT, render
from gpt1_jax.report.markdown import code_block, escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HTML_FILE, MARKDOWN_FILE, PLOTS = "report.html", "report.md", "plots"
_PICTURE_FILE = re.compile(
    r"(pretraining|(layer_transfer|aux_lm_weight|zero_shot)(_\d+)?)\.png"
)


class Text(NamedTuple):
    """Markdown; what comes from a run folder in it is `escaped` or `verbatim`."""

    markdown: str


class Picture(NamedTuple):
    """A figure."""

    name: str  # of its file, without the ending
    alt: str  # what it shows, in words
    draw: "Callable[[], Figure]"  # called once in each style


class Folded(NamedTuple):
    """Markdown that is shown on demand."""

    title: str  # plain text
    markdown: str


Block = Text | Picture | Folded


class Section(NamedTuple):
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        """The fragment of its address, as GitHub makes it from the title."""
        kept = re.sub(r"[^\w\- ]", "", self.title.lower())
        return kept.replace(" ", "-")


class Document(NamedTuple):
    """A report."""

    title: str  # plain text
    introduction: str  # Markdown
    sections: Sequence[Section]

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, in order."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Picture)]


_KINDS = {Text: "text", Picture: "picture", Folded: "folded"}


def missing(what: str, command: str) -> Text:
    """Says what is missing, and the command that makes it."""
    block = code_block(command, "bash")
    return Text(f"**Missing:** {what}. Made by:\n\n{block}")


class _Drawn(NamedTuple):
    """A picture in each form, for the page as data URIs."""

    light: str
    dark: str
    png: bytes


def refuse_others(folder: epath.Path) -> None:
    """Refuses a folder that holds anything but an earlier report, or is not writable.

    Raises:
      FileExistsError: naming what it holds.
      OSError: if it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name another --workdir.")
    check_output(folder / HTML_FILE, "--workdir=DIR")
    if not folder.exists():
        return
    others = [
        path.relative_to(folder).as_posix()
        for path in (*folder.iterdir(), *_plots(folder))
        if not _is_own(path.relative_to(folder).as_posix())
    ]
    if others:
        raise FileExistsError(
            f"{folder} holds {', '.join(sorted(others)[:5])} beside a report; name "
            "another --workdir, which a report has for itself."
        )


def write(document: Document, folder: epath.Path) -> None:
    """Writes `report.html`, `report.md` and `plots/`, in place of earlier ones.

    Args:
      document: the report.
      folder: made if missing; what an earlier report had more is removed.
    """
    pictures = {picture.name: _draw(picture) for picture in document.pictures}
    html, text = _html(document, pictures), _markdown(document)
    plots = folder / PLOTS
    remove_partial(folder)
    for path in _plots(folder):
        if path.stem not in pictures:
            path.unlink()
    for name, each in pictures.items():
        write_whole(plots / f"{name}.png", each.png)
    write_whole(folder / MARKDOWN_FILE, text)
    write_whole(folder / HTML_FILE, html)


def _is_own(name: str) -> bool:
    folder, slash, file = name.rpartition("/")
    name = folder + slash + whole_name(file)  # a killed program leaves others
    if name in (HTML_FILE, MARKDOWN_FILE, PLOTS):
        return True
    return bool(_PICTURE_FILE.fullmatch(name.removeprefix(f"{PLOTS}/")))


def _plots(folder: epath.Path) -> list[epath.Path]:
    plots = folder / PLOTS
    return sorted(plots.iterdir()) if plots.is_dir() else []


def _draw(picture: Picture) -> _Drawn:
    def uri(style: Mapping[str, Any]) -> str:
        data = base64.b64encode(render(picture.draw, style, "svg")).decode()
        return f"data:image/svg+xml;base64,{data}"

    return _Drawn(uri(LIGHT), uri(DARK), render(picture.draw, LIGHT, "png"))


def _markdown(document: Document) -> str:
    environment = _templates(autoescape=False)
    environment.filters["escaped"] = escape
    template = environment.get_template("report.md.jinja")
    return template.render(document=document, kind=_kind, plots=PLOTS)


def _html(document: Document, pictures: Mapping[str, _Drawn]) -> str:
    renderer = _renderer()

    def as_html(text: str) -> markupsafe.Markup:
        return markupsafe.Markup(renderer.render(text))

    environment = _templates(autoescape=True)
    environment.filters["html"] = as_html
    source, _, _ = environment.loader.get_source(environment, "style.css")
    return environment.get_template("report.html.jinja").render(
        document=document,
        kind=_kind,
        pictures=pictures,
        style=markupsafe.Markup(source),
    )


def _templates(autoescape: bool) -> Any:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("gpt1_jax.report"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _kind(block: object) -> str:
    return _KINDS[type(block)]


def _renderer() -> MarkdownIt:
    """From Markdown to HTML: no HTML in it is kept, and nothing in it is fetched."""
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    renderer.disable("image")
    rules: dict[str, Any] = renderer.renderer.rules  # type: ignore[attr-defined]
    scrolling = '<div class="table" role="region" aria-label="table" tabindex="0">'
    rules["table_open"] = lambda *_: f"{scrolling}<table>\n"
    rules["table_close"] = lambda *_: "</table></div>\n"
    renderer.core.ruler.push("headings_in_tables", _span_headings)
    return renderer


def _span_headings(state: StateCore) -> None:
    """Lets the first cell of a row take the place of all others, if they are empty."""
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
            kept[begin + 1 : -1] = row[:3]  # what opens the cell, holds and closes it
    state.tokens = kept
