"""Makes the documentation a site: python docs/make_site.py [FOLDER]

The pages go to FOLDER/docs, the site to FOLDER/site; FOLDER is build/documentation
unless named. Beside the pages of docs/, the README, the changelog and the benchmarks'
pages become pages, and so does the annotated script, which is run. Each other file that
a page links to, such as a module, becomes a page with its text: so no link leads out of
the site, and each is checked. A broken link or an unknown function is an error.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import latex2mathml.converter
import nbclient
import nbformat
import zensical
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import TagRemovePreprocessor

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {  # outside of docs/
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/LOG.md": "benchmarks-log.md",
}
ANNOTATED = DOCS / "annotated" / "gpt1.py"  # a script, which becomes a page, too
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_EQUATION = re.compile(  # or code, or a dollar sign
    r"(?P<code>(`+)(?!`).+?(?<!`)\2(?!`))|\\\$"
    r"|(?P<signs>\$\$?)(?P<equation>.+?)(?<!\\)(?P=signs)",
    re.DOTALL,
)
_LANGUAGES = {".py": "python", ".sh": "bash", ".json": "json", ".yaml": "yaml"}


def main(output: Path) -> None:
    """Writes the pages and builds the site."""
    shutil.rmtree(output, ignore_errors=True)
    pages = [ROOT / name for name in PAGES] + sorted(DOCS.glob("**/*.md"))
    for page in pages:
        _write(output, place(page), site_page(page))
    for path in sorted({each for page in pages for each in linked(page)} - {*pages}):
        if path == ANNOTATED:
            continue
        if path.suffix == ".png":
            target = output / "docs" / place(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        else:
            _write(output, place(path), source_page(path))
    annotate(output)
    shutil.copy(DOCS / "mkdocs.yml", output)
    program = [sys.executable, "-m", zensical.__name__]  # it need not be on the path
    build = [*program, "build", "--strict", "--clean", "-f", "mkdocs.yml"]
    subprocess.run(build, cwd=output, check=True)


def _write(output: Path, place: str, text: str) -> None:
    path = output / "docs" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def place(path: Path) -> str:
    """Where a file of the repository is on the site."""
    name = path.relative_to(ROOT).as_posix()
    if name in PAGES:
        return PAGES[name]
    if path == ANNOTATED:
        return path.relative_to(DOCS).with_suffix(".md").as_posix()
    if path.is_relative_to(DOCS) and path.suffix in (".md", ".png"):
        return path.relative_to(DOCS).as_posix()
    return f"source/{name}/index.md" if path.is_dir() else f"source/{name}.md"


def linked(page: Path) -> Iterator[Path]:
    """The files of the repository that a page links to."""
    for target in _LINK.findall(page.read_text()):
        path = (page.parent / target).resolve()
        if path.is_relative_to(ROOT) and path.exists():
            yield path


def site_page(page: Path) -> str:
    """A page whose links lead to pages of the site."""
    return _on_site(page.read_text(), page)


def _on_site(text: str, page: Path) -> str:
    here = Path(place(page)).parent

    def renamed(match: re.Match[str]) -> str:
        path = (page.parent / match[1]).resolve()
        return os.path.relpath(place(path), here) if path.exists() else match[1]

    return _LINK.sub(renamed, text)


def annotate(output: Path) -> None:
    """Runs the annotated script, and writes it as a page and as a notebook."""
    notebook = jupytext.read(ANNOTATED)
    nbclient.NotebookClient(notebook, timeout=900, coalesce_streams=True).execute()
    path = output / "docs" / place(ANNOTATED)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path.with_suffix(".ipynb"))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_mathml(_on_site(cell.source, ANNOTATED))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/markdown" in data:
                data["text/markdown"] = with_mathml(data["text/markdown"])
    hidden = TagRemovePreprocessor(
        remove_cell_tags={"hide"}, remove_input_tags={"hide-input"}, enabled=True
    )
    exporter = MarkdownExporter()
    exporter.register_preprocessor(hidden, enabled=True)
    text, resources = exporter.from_notebook_node(notebook)
    for name, picture in resources["outputs"].items():
        path.with_name(name).write_bytes(picture)
    title, rest = text.split("\n", 1)
    link = f"[As a notebook]({path.with_suffix('.ipynb').name}), with what it computed."
    path.write_text(f"{title}\n\n{link}\n{rest}")


def with_mathml(text: str) -> str:
    """Markdown with its equations as MathML, which browsers draw by themselves."""
    return _EQUATION.sub(_mathml, text)


def _mathml(match: re.Match[str]) -> str:
    if match["code"]:
        return match[0]
    if not match["signs"]:
        return "$"
    if match["signs"] == "$$":
        return latex2mathml.converter.convert(match["equation"], display="block")
    # Markdown takes a line that begins with <math> for a block of its own.
    return f"<span>{latex2mathml.converter.convert(match['equation'])}</span>"


def source_page(path: Path) -> str:
    """A page with a file's text, a notebook's cells or the names in a folder."""
    name = path.relative_to(ROOT).as_posix()
    head = f"---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n# {name}\n\n"
    if path.is_dir():
        return head + "\n".join(f"- `{each.name}`" for each in sorted(path.iterdir()))
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        return head + "\n\n".join(map(_cell, cells))
    return head + _fenced(path.read_text(), _LANGUAGES.get(path.suffix, "text"))


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "code":
        return _fenced(text, "python")
    # Without pictures, which come from elsewhere, and links from the notebook's folder.
    text = re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\[([^\]]*)\]\((?!http)[^)]*\)", r"\1", text)


def _fenced(text: str, language: str) -> str:
    fence = "~" * 12
    return f"{fence} {language}\n{text}\n{fence}"


if __name__ == "__main__":
    main(Path(*sys.argv[1:2]) if sys.argv[1:] else ROOT / "build" / "documentation")
