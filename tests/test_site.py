"""The documentation as a site: nothing from other servers, no link to nowhere."""

import html.parser
import os
import re
import subprocess
import sys
from urllib.parse import unquote, urldefrag

import pytest
from tiny_run import ROOT

pytest.importorskip("zensical", reason="needs pip install -e '.[docs]'")
pytestmark = pytest.mark.slow


class Page(html.parser.HTMLParser):
    """The links, the targets of links and what is loaded of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.targets, self.loaded = [], {""}, []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.targets |= {values.get("id"), values.get("name")}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag != "a" and values.get("rel") != "canonical":
            self.loaded += [values[key] for key in ("src", "href") if key in values]


@pytest.fixture(scope="module")
def site(made_once):
    """The folder of the site, made by a Python that is not on the path."""

    def make(folder):
        command = [sys.executable, "docs/make_site.py", str(folder)]
        # The annotated script trains; compiled as in use, in half the time.
        changed = {"PATH": os.defpath, "XLA_FLAGS": ""}
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **changed})

    return made_once("documentation", make) / "site"


@pytest.fixture(scope="module")
def pages(site):
    paths = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path: Page(path) for path in paths}


def test_nothing_comes_from_another_server(site, pages):
    loaded = {each for page in pages.values() for each in page.loaded}
    assert len(loaded) > 5
    assert not [each for each in loaded if re.match(r"(https?:)?//", each)]
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"url\(['\"]?https?:", styles)


def test_every_link_leads_somewhere(pages):
    followed = 0
    for path, page in pages.items():
        for link in page.links:
            address, fragment = urldefrag(unquote(link))
            if re.match(r"[a-z]+:", address):
                continue
            target = (path.parent / address).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path} leads to {link}"
            if target in pages and fragment != "__skip":
                assert fragment in pages[target].targets, f"{path} leads to {link}"
            followed += 1
    assert followed > 5000


def test_docstrings_a_notebook_and_a_folder_are_pages(site):
    text = (site / "api" / "index.html").read_text()
    for name in ("load", "surprisal", "released_adam", "make_pretrain_step"):
        assert re.search(rf'id="[\w.]+\.{name}"', text)
    assert "See `gpt1_jax.load`" not in text
    assert "look_inside.ipynb" in (site / "source/notebooks/index.html").read_text()
    notebook = (site / "source/notebooks/look_inside.ipynb/index.html").read_text()
    assert "gpt1_jax.load" in re.sub("<[^>]*>", "", notebook)


def test_the_annotated_script_computes_what_it_says(site):
    page = (site / "annotated/gpt1/index.html").read_text()
    text = re.sub("<[^>]*>", "", page)
    assert "def attention_probs" in text and "def released_adam" in text
    assert page.count("<math") > 20 and page.count("output_") >= 5
    by_hand, by_function = re.search(
        r"by hand (-[\d.]+), by the function (-[\d.]+)", text
    ).groups()
    assert by_hand == by_function
    assert "[0 0 0 0 0 0 0 1]" in text  # the last token changes its own state alone
    pronouns = dict(re.findall(r"(tom|mary) called the cat because ... (\w+)", text))
    assert pronouns == {"tom": "he", "mary": "she"}
    assert (site / "annotated/gpt1.ipynb").exists()
    assert re.search(r"a row of\s+<span><math.*?</math></span>, is added", page, re.S)
    assert r"\$" not in text
    assert not re.search(r"\$\\?\w+\$", text)  # an equation as it was written
