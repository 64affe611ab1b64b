"""The page to look inside models, in a real browser: what a reader sees and does."""

import re
import shutil

import numpy as np
import pytest
from tiny_run import job_config

import gpt1_jax
from gpt1_jax.studies.explore import job as explore

sync_api = pytest.importorskip("playwright.sync_api")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium here (Debian: chromium)"),
]
TEXT = 'the quick fox walked home <script>alert("1")</script>\nשלום said "&amp; she"'
BEFORE = "the quick fox"
LINE = f"{BEFORE} walked home"  # its first words


@pytest.fixture(scope="module")
def page_file(pretrained, pretrained_lstm, made_once):
    """The page on a Transformer, an LSTM and the Transformer again."""

    def make(folder):
        folder.mkdir(exist_ok=True)
        again = shutil.copytree(pretrained, folder / "again")
        runs = f"{pretrained},{pretrained_lstm},{again}"
        output = str(folder / "page.html")
        config = job_config("explore", runs=runs, text=TEXT, output=output)
        explore.run(config, "")

    return made_once("explore", make) / "page.html"


@pytest.fixture(scope="module")
def browser():
    """Chromium; playwright's own browsers are not needed."""
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, page_file):
    """A function that opens the page; nothing may be fetched, nor an error arise."""
    problems = []

    def open_page():
        page = browser.new_context(offline=True).new_page()
        page.on("console", lambda each: problems.append(each.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda each: problems.append(each.message))
        page.on("request", lambda each: problems.append(each.url))
        page.goto(f"file://{page_file}")
        problems[:] = [each for each in problems if not each.endswith("page.html")]
        return page

    yield open_page
    assert problems == []


def test_the_numbers_of_each_step_are_the_model_s(opened, pretrained, pretrained_lstm):
    """Beside the text as it is, though a stranger wrote it."""
    page = opened()
    texts = page.locator(".text").first.get_by_role("option").all_inner_texts()
    assert texts == TEXT.split()
    for value, step in enumerate((8, 12)):
        page.get_by_role("slider").fill(str(value))
        assert page.locator("#step").inner_text() == str(step)
        for run, folder in enumerate((pretrained, pretrained_lstm)):
            words = gpt1_jax.load(str(folder), step).surprisal(TEXT, context="text")
            found = page.locator(".text").nth(run).get_by_role("option").all()
            labels = [each.get_attribute("aria-label") for each in found]
            assert labels == [f"{w.word}, {w.bits:.1f} bits" for w in words]


def assert_shown(row, share):
    """Whether a row has this share, as the page rounds it."""
    text = row.split("\t")[1].strip()
    if text == "<0.1%":
        assert share <= 0.0005
    else:
        rounded = 0.051 if "." in text else 0.51
        assert float(text.rstrip("%")) == pytest.approx(100 * share, abs=rounded)


def test_each_token_has_its_own_numbers(opened, pretrained):
    """Surprisal, rank and what was expected in its place are those of the model."""
    model = gpt1_jax.load(str(pretrained))
    logits = np.asarray(model.logits(f"\n{LINE}"), np.float64)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    ids, first = model.encode(f"\n{LINE}"), len(model.encode(f"\n{BEFORE}"))
    page = opened()
    page.locator("#run0word3").click()
    section = page.locator(".expected").first
    radios = section.get_by_role("radio").all()
    assert len(radios) == len(model.encode("walked")) > 1
    for place, radio in enumerate(radios, first):
        radio.click()
        before, own = probs[place - 1], probs[place - 1, ids[place]]
        text = section.locator("p").nth(1).inner_text()
        found = re.fullmatch(r"“(.+)”: ([\d.]+) bits, rank ([\d,]+)", text)
        assert float(found[2]) == pytest.approx(-np.log2(own), abs=0.0051)
        rank = 1 + (before > own).sum()
        assert int(found[3].replace(",", "")) == rank
        rows = section.locator("tbody tr").all_inner_texts()
        assert len(rows) == (10 if rank <= 10 else 11)
        for row, share in zip(rows, np.sort(before)[::-1][:10], strict=False):
            assert_shown(row, share)
        (came,) = [number for number, row in enumerate(rows) if "✓" in row]
        assert came == min(rank - 1, 10) and rows[came].startswith(found[1])
        assert_shown(rows[came], own)
