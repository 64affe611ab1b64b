"""The page to look inside models, in a real browser: what a reader sees and does."""

import shutil

import pytest
from tiny_run import load_config

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.jobs import explore

sync_api = pytest.importorskip("playwright.sync_api")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium here (Debian: chromium)"),
]
TEXT = 'the quick fox walked home <script>alert("1")</script>\nשלום said "&amp; she"'
SIZES = {"wide": (1400, 900), "narrow": (360, 740)}
_SMALLEST_LETTER = """() => Math.min(...[...document.body.querySelectorAll("*")]
    .filter((e) => [...e.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
    .map((e) => parseFloat(getComputedStyle(e).fontSize)))"""


@pytest.fixture(scope="module")
def page_file(pretrained, pretrained_lstm, made_once):
    """The page on a Transformer and an LSTM."""

    def make(folder):
        folder.mkdir(exist_ok=True)
        runs, output = f"{pretrained},{pretrained_lstm}", str(folder / "page.html")
        config = load_config(None, "explore", runs=runs, text=TEXT, output=output)
        explore.run(config_lib.load(config.to_dict()), "")

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

    def open_page(size="wide", **options):
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, offline=True, **options
        )
        page = context.new_page()
        page.on("console", lambda each: problems.append(each.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda each: problems.append(each.message))
        page.on("request", lambda each: problems.append(each.url))
        page.goto(f"file://{page_file}")
        problems[:] = [each for each in problems if not each.endswith("page.html")]
        return page

    yield open_page
    assert problems == []


def labels(page, run):
    """The words of a run with their bits, as a screen reader has them."""
    options = page.locator(".text").nth(run).get_by_role("option").all()
    return [option.get_attribute("aria-label") for option in options]


def test_the_numbers_of_each_step_are_the_model_s(opened, pretrained, pretrained_lstm):
    page = opened()
    slider = page.get_by_role("slider")
    for value, step in enumerate((8, 12)):
        slider.fill(str(value))
        assert page.locator("#step").inner_text() == str(step)
        for run, folder in enumerate((pretrained, pretrained_lstm)):
            words = gpt1_jax.load(str(folder), step).surprisal(TEXT, context="text")
            assert labels(page, run) == [f"{w.word}, {w.bits:.1f} bits" for w in words]


def test_the_expected_tokens_and_attention_are_the_model_s(opened, pretrained):
    page = opened()
    page.locator("#run0word2").click()  # fox
    model = gpt1_jax.load(str(pretrained))
    rows = page.locator(".expected").first.locator("tbody tr").all_inner_texts()
    expected = model.next_tokens("the quick")
    if page.locator(".tokens button").count():
        page.locator(".tokens button").first.click()
        rows = page.locator(".expected").first.locator("tbody tr").all_inner_texts()
    assert len(rows) == len(expected) == 10
    for row, (_, share) in zip(rows, expected, strict=True):
        assert float(row.split("\t")[1].strip().rstrip("%")) == pytest.approx(
            100 * share, abs=0.06 if share < 0.0995 else 0.6
        )
    attention = model.attention("\nthe quick fox")
    position = len(model.encode("\nthe quick"))
    cells = page.locator(".layers").first.locator(".heat button").all_inner_texts()
    largest = 100 * attention[..., position, :].max(-1).ravel()
    assert [int(cell) for cell in cells[: len(largest)]] == pytest.approx(
        largest, abs=0.75
    )
    assert "An LSTM has none." in page.locator(".layers").nth(1).inner_text()


def test_keys_and_pointer_choose_words_and_steps(opened):
    page = opened()
    chosen = page.locator(".chosen")
    page.locator("#run0word1").hover()
    assert chosen.inner_text() == "quick"
    page.locator("#run0word3").click()
    page.locator("#run0word1").hover()
    assert chosen.inner_text() == "walked"  # kept
    page.locator(".text").first.focus()
    page.keyboard.press("ArrowRight")
    assert chosen.inner_text() == "home"
    page.keyboard.press("ArrowDown")
    assert page.locator("#step").inner_text() == "8"
    page.keyboard.press("Home")
    page.keyboard.press("Escape")
    page.locator("#run1word2").hover()
    assert chosen.inner_text() == "fox"
    page.get_by_label("Colours show").select_option("attention")
    shares = page.locator("#run0word2").evaluate(
        "e => getComputedStyle(e).getPropertyValue('--share')"
    )
    assert 0 <= float(shares) <= 1.01
    assert page.locator(".text.attention").count() == 2


def test_a_finger_chooses_a_word(opened):
    page = opened("narrow", has_touch=True)
    page.locator("#run0word3").tap()
    assert page.locator(".chosen").inner_text() == "walked"


def test_text_of_a_stranger_is_shown_as_it_is(opened):
    page = opened()
    shown = [option.inner_text() for option in page.locator("#run0").all()]
    assert shown  # the heading
    texts = page.locator(".text").first.get_by_role("option").all_inner_texts()
    assert texts == TEXT.split()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_letters_are_readable_on_any_screen(opened, size, scheme):
    page = opened(size, color_scheme=scheme)
    assert page.evaluate(_SMALLEST_LETTER) >= 12
    width, _ = SIZES[size]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = (
        page.evaluate(f"getComputedStyle(document.body).{name}")
        for name in ("color", "backgroundColor")
    )
    brightness = [sum(map(int, c[4:-1].split(","))) for c in (ink, paper)]
    assert (brightness[0] > brightness[1]) == (scheme == "dark")
