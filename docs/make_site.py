"""Makes the documentation a site: python docs/make_site.py [FOLDER]

The pages go to FOLDER/docs, the site to FOLDER/site; FOLDER is build/documentation
unless named. Beside the pages of docs/, the README, the changelog and the benchmarks'
pages become pages. Each other file that a page links to, such as a module, becomes a
page with its text: so no link leads out of the site, and each is checked. A broken link
or an unknown function is an error.
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

import latex2mathml.converter

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {  # outside of docs/
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/LOG.md": "benchmarks-log.md",
}
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_EQUATION = re.compile(r"\$`([^`]+)`\$")  # as GitHub writes them
_DISPLAYED = re.compile(r"^```math\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_LANGUAGES = {".py": "python", ".sh": "bash", ".json": "json", ".yaml": "yaml"}


def main(output: Path) -> None:
    """Writes the pages and builds the site."""
    shutil.rmtree(output, ignore_errors=True)
    pages = [ROOT / name for name in PAGES] + sorted(DOCS.glob("**/*.md"))
    for page in pages:
        _write(output, place(page), site_page(page))
    for path in sorted({each for page in pages for each in linked(page)} - {*pages}):
        if path.suffix == ".png":
            target = output / "docs" / place(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        else:
            _write(output, place(path), source_page(path))
    shutil.copy(DOCS / "mkdocs.yml", output)
    build = ["zensical", "build", "--strict", "--clean", "-f", "mkdocs.yml"]
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
    """A page whose links lead to pages of the site, with equations as MathML."""
    here = Path(place(page)).parent

    def on_site(match: re.Match[str]) -> str:
        path = (page.parent / match[1]).resolve()
        return os.path.relpath(place(path), here) if path.exists() else match[1]

    text = _LINK.sub(on_site, page.read_text())
    text = _DISPLAYED.sub(lambda match: _mathml(match[1], "block"), text)
    return _EQUATION.sub(lambda match: _mathml(match[1], "inline"), text)


def _mathml(equation: str, display: str) -> str:
    return latex2mathml.converter.convert(equation, display=display)


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
