"""The page to look inside models, in a real browser: what a reader sees and does."""

import re
import shutil

import numpy as np
import pytest
from tiny_run import load_config

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.studies.explore import job as explore

sync_api = pytest.importorskip("playwright.sync_api")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium here (Debian: chromium)"),
]
TEXT = 'the quick fox walked home <script>alert("1")</script>\nשלום said "&amp; she"'
SIZES = {"wide": (1400, 900), "narrow": (390, 740)}
LINE = "the quick fox walked home"  # its first words
_SMALLEST_LETTER = """() => Math.min(...[...document.body.querySelectorAll("*")]
    .filter((e) => [...e.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
    .map((e) => parseFloat(getComputedStyle(e).fontSize)))"""


@pytest.fixture(scope="module")
def page_file(pretrained, pretrained_lstm, made_once):
    """The page on a Transformer, an LSTM and the Transformer again."""

    def make(folder):
        folder.mkdir(exist_ok=True)
        again = shutil.copytree(pretrained, folder / "again")
        runs = f"{pretrained},{pretrained_lstm},{again}"
        output = str(folder / "page.html")
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
    """Beside the text as it is, though a stranger wrote it."""
    page = opened()
    texts = page.locator(".text").first.get_by_role("option").all_inner_texts()
    assert texts == TEXT.split()
    for value, step in enumerate((8, 12)):
        page.get_by_role("slider").fill(str(value))
        assert page.locator("#step").inner_text() == str(step)
        for run, folder in enumerate((pretrained, pretrained_lstm)):
            words = gpt1_jax.load(str(folder), step).surprisal(TEXT, context="text")
            assert labels(page, run) == [f"{w.word}, {w.bits:.1f} bits" for w in words]


@pytest.fixture(scope="module")
def read(pretrained):
    """What the Transformer does with the first words: tokens, probabilities, attention.

    The tokens begin with that of the newline; a row of probabilities is of what comes
    in the place of a token, from the second on.
    """
    model = gpt1_jax.load(str(pretrained))
    logits = np.asarray(model.logits(f"\n{LINE}"), np.float64)
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    ids = model.encode(f"\n{LINE}")
    return model, ids, np.roll(probs, 1, axis=0), model.attention(f"\n{LINE}")


def span(model, word):
    """The places of the tokens of a word, of which it must have several."""
    words = LINE.split()
    first = 1 + len(model.encode(" ".join(words[:word])))
    stop = first + len(model.encode(words[word]))
    assert stop > first + 1
    return range(first, stop)


def percents(row):
    """A share as the page writes it, and how far it may be from the exact one."""
    text = row.split("\t")[1].strip()
    if text == "<0.1%":
        return 0.0, 0.05
    return float(text.rstrip("%")), 0.051 if "." in text else 0.51


def focused(page):
    """What the next key goes to, as a screen reader names it."""
    return page.evaluate(
        "[document.activeElement.ariaLabel ?? document.activeElement.innerText,"
        " document.activeElement.ariaChecked]"
    )


def test_each_token_has_its_own_numbers(opened, read):
    """Surprisal, rank and what was expected in its place are those of the model."""
    model, ids, probs, _ = read
    page = opened()
    page.locator("#run0word3").click()
    section = page.locator(".expected").first
    places = span(model, 3)
    radios = section.get_by_role("radio")
    assert radios.count() == len(places)
    bits = [-np.log2(probs[place, ids[place]]) for place in places]
    whole = section.locator("p").first.inner_text()
    assert float(whole.split(": ")[1].split()[0]) == pytest.approx(sum(bits), abs=0.006)
    for place, radio, own in zip(places, radios.all(), bits, strict=True):
        radio.click()
        assert float(radio.inner_text().split()[-1]) == pytest.approx(own, abs=0.051)
        text = section.locator("p").nth(1).inner_text()
        found = re.fullmatch(r"“(.+)”: ([\d.]+) bits, rank ([\d,]+)", text)
        assert float(found[2]) == pytest.approx(own, abs=0.0051)
        rank = 1 + (probs[place] > probs[place, ids[place]]).sum()
        assert int(found[3].replace(",", "")) == rank
        rows = section.locator("tbody tr").all_inner_texts()
        expected = np.sort(probs[place])[::-1][:10]
        assert len(rows) == (10 if rank <= 10 else 11)
        for row, share in zip(rows, expected, strict=False):
            shown, tolerance = percents(row)
            assert shown == pytest.approx(100 * share, abs=tolerance)
        (came,) = [number for number, row in enumerate(rows) if "✓" in row]
        assert came == min(rank - 1, 10)
        shown, tolerance = percents(rows[came])
        assert shown == pytest.approx(100 * 2**-own, abs=tolerance)
        assert rows[came].startswith(found[1])
    assert "instead" not in section.inner_text()


def test_attention_is_the_model_s_in_numbers_lines_and_map(opened, read):
    model, _, _, attention = read
    page = opened()
    page.get_by_label("Colours show").select_option("attention")
    page.locator("#run0word4").click()
    place = 1 + len(model.encode(" ".join(LINE.split()[:4])))
    section = page.locator(".attended").first
    heads = section.get_by_role("radio")
    layers, num_heads = attention.shape[:2]
    assert heads.count() == layers * num_heads
    for number, head in enumerate(heads.all()):
        head.click()
        weights = attention[number // num_heads, number % num_heads]
        shown, tolerance = percents(f"\t{head.inner_text()}")
        assert shown == pytest.approx(100 * weights[place].max(), abs=tolerance)
        rows = section.locator("tbody tr").all_inner_texts()
        largest = np.sort(weights[place])[::-1][:8]
        others = [] if place < 8 else [weights[place].sum() - largest.sum()]
        for row, share in zip(rows, [*largest, *others], strict=True):
            shown, tolerance = percents(row)
            assert shown == pytest.approx(100 * share, abs=tolerance)
        # One line to each other word, the thickest to that with most.
        kept = np.where(weights[place] >= largest[-1], weights[place], 0)
        spans = [[0]]
        for word in LINE.split()[:5]:
            first = spans[-1][-1] + 1
            spans.append(list(range(first, first + len(model.encode(word)))))
        by_word = [kept[each].sum() for each in spans[:-1]]
        lines = page.locator(".text").first.locator("path")
        widths = lines.evaluate_all(
            "paths => paths.map((each) => Number(each.getAttribute('stroke-width')))"
        )
        assert sorted(widths) == pytest.approx(
            sorted(1 + 5 * share for share in by_word if share), abs=0.01
        )
        drawn = section.locator(".map canvas").evaluate(
            "c => [c.width, [...c.getContext('2d').getImageData(0, 0, c.width,"
            " c.width).data].filter((_, i) => i % 4 == 3)]"
        )
        opacity = np.reshape(drawn[1], (drawn[0], drawn[0]))[place]
        if others:  # those that the page does not hold, as their mean
            kept[: place + 1][kept[: place + 1] == 0] = others[0] / (place - 7)
        shown_in_map = (opacity[: len(kept)] / 255) ** 2
        np.testing.assert_allclose(shown_in_map, kept, atol=0.5 / 255)
    lstm = page.locator(".attended").nth(1)
    assert "an LSTM has none." in lstm.inner_text()
    assert page.locator(".text").nth(1).locator("path").count() == 0


def test_the_focus_stays_on_tokens_and_heads(opened):
    page = opened()
    page.locator("#run0word3").click()
    section = page.locator(".expected").first
    before = section.inner_text()
    section.get_by_role("radio").first.focus()
    for key, number in (("Enter", 0), ("ArrowRight", 1), ("Space", 1), ("Enter", 1)):
        page.keyboard.press(key)
        text = section.get_by_role("radio").nth(number).inner_text()
        assert focused(page) == [text, "true"]
    assert section.inner_text() != before
    assert page.locator(".chosen").inner_text() == LINE.split()[3]
    page.keyboard.press("Tab")  # past the other tokens of this word
    assert page.locator(".expected").nth(1).locator(":focus").count() == 1

    heads = page.locator(".attended").first.get_by_role("radio")
    heads.first.focus()
    page.keyboard.press("ArrowRight")
    assert focused(page) == [heads.nth(1).get_attribute("aria-label"), "true"]
    page.keyboard.press("Escape")
    assert focused(page)[0] == page.locator(".text").first.get_attribute("aria-label")
    page.locator("#run0word1").hover()
    assert page.locator(".chosen").inner_text() == "quick"  # let go


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
    page.get_by_label("Colours show").select_option("attention")
    assert page.locator(".text.attention").count() == 3


def test_a_finger_chooses_a_word_and_sees_it_beside_its_numbers(opened):
    page = opened("narrow", has_touch=True)
    panel, close = page.locator(".panel"), page.get_by_role("button", name="Close")
    assert not panel.is_visible()
    for word in ("#run0word3", "#run2word7"):
        page.locator(word).tap()
        text = page.locator(word).inner_text()
        assert page.locator(".chosen").inner_text() == text
        box, tapped = panel.bounding_box(), page.locator(word).bounding_box()
        assert tapped["y"] > 0 and tapped["y"] + tapped["height"] <= box["y"]
        numbers = page.locator(".expected tr").first.bounding_box()
        assert numbers["y"] < 740  # there without scrolling
        close.tap()
        assert not panel.is_visible()


@pytest.mark.parametrize(("size", "scheme"), [("wide", "light"), ("narrow", "dark")])
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
