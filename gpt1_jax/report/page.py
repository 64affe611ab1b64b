"""Writes a report: Markdown with pictures, and one HTML page that is made of it."""

import base64
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import markupsafe
from etils import epath
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from gpt1_jax.data.files import remove_partial, write_whole
from gpt1_jax.report.comparisons import COMPARISONS
from gpt1_jax.report.markdown import code_block, escape
from gpt1_jax.report.plots import DARK, LIGHT, Picture, render_figure, save_figure
from gpt1_jax.runs.folder import NAMES
from gpt1_jax.runs.outputs import check_output

HTML_FILE, MARKDOWN_FILE, PLOTS = "report.html", "report.md", "plots"
_PACKAGE = "gpt1_jax.report"
# Names of pictures, beside those of studies; several of one name are numbered.
_PICTURES = (
    *("pretraining", "finetuning", "confusion", "reliability"),
    *(name for name, each in COMPARISONS.items() if each.has_figure),
)


# A block is Markdown, in which text from run folders is escaped or in a code block, or
# a picture.
Block = str | Picture


class ReportSection(NamedTuple):
    """A heading and the blocks below it."""

    title: str  # plain text
    blocks: Sequence[Block]
    folded: bool = False  # on the page, what each "### Heading" leads is folded

    @property
    def anchor(self) -> str:
        """The fragment of its address."""
        return _anchor(self.title)


class Report(NamedTuple):
    """A report, before it becomes files."""

    title: str  # plain text
    introduction: str  # Markdown
    sections: Sequence[ReportSection]
    suffix: str = ".png"  # of the files of pictures

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, in order."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Picture)]

    def file_of(self, picture: Picture) -> str:
        """The file of a picture, as the Markdown links to it."""
        return f"{PLOTS}/{picture.name}{self.suffix}"

    @property
    def markdown(self) -> str:
        """The whole report as Markdown."""
        contents = [f"- [{escape(s.title)}](#{s.anchor})" for s in self.sections]
        parts = [f"# {escape(self.title)}", self.introduction, "\n".join(contents)]
        for section in self.sections:
            parts.append(f"## {escape(section.title)}")
            for block in section.blocks:
                if isinstance(block, Picture):
                    block = f"![{escape(block.alt)}]({self.file_of(block)})"
                parts.append(block.strip())
        return "\n\n".join(parts) + "\n"


def missing(what: str, command: str) -> str:
    """Says what is missing, and the command that makes it."""
    return f"**Missing:** {what}. Made by:\n\n{code_block(command, 'bash')}"


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
    remove_partial(folder)
    for path in _earlier_files(folder / PLOTS, studies):
        path.unlink(missing_ok=True)
    drawn = [
        each
        for each in report.pictures
        if save_figure(each.draw, folder / report.file_of(each), each.rows)
    ]
    write_whole(folder / MARKDOWN_FILE, report.markdown)
    write_whole(folder / HTML_FILE, _html(report, drawn))


def _earlier_files(plots: epath.Path, studies: Iterable[str]) -> list[epath.Path]:
    """The pictures and numbers in a folder that reports have made, by their names."""
    if not plots.is_dir() or os.path.islink(plots):
        return []
    names = "|".join(map(re.escape, (*_PICTURES, *studies)))
    made = re.compile(rf"({names})(_\d+)?\.(png|svg|pdf|csv)")
    return [path for path in plots.iterdir() if made.fullmatch(path.name)]


# --- the page ---------------------------------------------------------------------


def _html(report: Report, drawn: Iterable[Picture]) -> str:
    """The page: its Markdown with all HTML escaped, and the pictures inside it."""
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    renderer.core.ruler.push("page", _shape_page)
    scrolling = '<div class="table" role="region" aria-label="table" tabindex="0">'
    renderer.add_render_rule("table_open", lambda *_: f"{scrolling}<table>\n")
    renderer.add_render_rule("table_close", lambda *_: "</table></div>\n")
    renderer.add_render_rule("image", _embed)
    known = {
        "pictures": {report.file_of(each): each for each in drawn},
        "folded": {each.anchor for each in report.sections if each.folded},
    }
    template = templates(_PACKAGE, autoescape=True).get_template("report.html.jinja")
    return template.render(
        title=report.title,
        body=markupsafe.Markup(renderer.render(report.markdown, known)),
        style=markupsafe.Markup(read_template(_PACKAGE, "style.css")),
    )


def _shape_page(state: StateCore) -> None:
    """Gives sections anchors, folds parts, and marks the contents and the figures."""
    shaped: list[Token] = []
    has_contents = in_folded = is_open = False
    for number, token in enumerate(state.tokens):
        if token.type == "heading_open":
            if is_open:
                shaped.append(Token("details_close", "details", -1))
            is_open = in_folded and token.tag == "h3"
            if is_open:
                shaped.append(Token("details_open", "details", 1))
                token.tag = state.tokens[number + 2].tag = "summary"
            elif token.tag == "h2":
                anchor = _anchor(state.tokens[number + 1].content)
                token.attrSet("id", anchor)
                in_folded = anchor in state.env["folded"]
        elif token.type == "paragraph_open":
            children = state.tokens[number + 1].children or ()
            if [child.type for child in children] == ["image"]:
                token.tag = state.tokens[number + 2].tag = "figure"
        elif token.type == "bullet_list_open" and not has_contents:
            shaped.append(Token("nav_open", "nav", 1, {"aria-label": "Contents"}))
        shaped.append(token)
        if token.type == "bullet_list_close" and not has_contents:
            shaped.append(Token("nav_close", "nav", -1))
            has_contents = True
    if is_open:
        shaped.append(Token("details_close", "details", -1))
    state.tokens = shaped


def _embed(self: Any, tokens: Any, index: int, options: Any, known: Any) -> str:
    """A picture of the report in the page, light and dark; of others, the words."""
    token = tokens[index]
    alt = self.renderInlineAsText(token.children, options, known)
    picture = known["pictures"].get(token.attrGet("src"))
    if picture is None:
        return markupsafe.escape(alt)
    return markupsafe.Markup(
        '<picture><source media="(prefers-color-scheme: dark)" srcset="{}">'
        '<img src="{}" alt="{}"></picture>'
    ).format(_svg_uri(picture, DARK), _svg_uri(picture, LIGHT), alt)


def _svg_uri(picture: Picture, style: Mapping[str, Any]) -> str:
    """A picture as a URI that holds it."""
    svg = render_figure(picture.draw, ".svg", style=style)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _anchor(title: str) -> str:
    """The fragment of a section's address, made from its title as on GitHub."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


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
