"""The page to look inside models, in a real browser: what a reader sees."""

import shutil

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


@pytest.fixture
def page(pretrained, pretrained_lstm, tmp_path):
    """The opened page, on a Transformer and an LSTM.

    Nothing may be fetched, nor an error arise; playwright's browsers are not needed.
    """
    problems, file = [], tmp_path / "page.html"
    runs = f"{pretrained},{pretrained_lstm}"
    explore.run(job_config("explore", runs=runs, text=TEXT, output=str(file)), "")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        page = chromium.new_context(offline=True).new_page()
        page.on("console", lambda each: problems.append(each.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda each: problems.append(each.message))
        page.on("request", lambda each: problems.append(each.url))
        page.goto(f"file://{file}")
        problems[:] = [each for each in problems if not each.endswith("page.html")]
        yield page
        chromium.close()
    assert problems == []


def test_the_numbers_of_each_step_are_the_model_s(page, pretrained, pretrained_lstm):
    """Beside the text as it is, though a stranger wrote it."""
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
