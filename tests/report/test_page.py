"""The files of a report: what they hold, fetch and replace."""

import re
from html.parser import HTMLParser

import pytest
from etils import epath
from markdown_it import MarkdownIt

from gpt1_jax.report import page
from gpt1_jax.report.markdown import code_block, escape
from gpt1_jax.report.page import Report, ReportSection, missing
from gpt1_jax.report.plots import Picture, new_figure

VOID = {"br", "hr", "img", "link", "meta", "source"}
NASTY = "<script>alert(1)</script> ![x](http://e.com/x.png) <img src=//e.com> | `a` &"


class Page(HTMLParser):
    """Reads a page, and fails where its tags do not match."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(html)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.text += data


def draw():
    figure = new_figure(2, 2, layout=None)
    figure.subplots().plot([1, 2], [3, 4])
    return figure


MORE = "### more\n\n| key | value |\n| --- | --- |\n| a | 7 |\n\n### yet more\n\nThis."


PLAIN = (
    "### Part\n\n| a | b |\n| --- | ---: |\n| **group** |  |\n| x | 12.5 |",
    Picture("pretraining", "what it shows", draw, [{"x": 1, "y": 3}]),
)


def write(folder, *blocks, title="A title", folded=(MORE,), suffix=".png"):
    sections = [
        ReportSection("One (first)", blocks or PLAIN),
        ReportSection("Two", folded, folded=True),
    ]
    report = Report(title, "An *introduction*.", sections, suffix)
    page.write_report(report, epath.Path(folder), ["zero_shot"])
    html = (folder / page.HTML_FILE).read_text()
    return Page(html), (folder / page.MARKDOWN_FILE).read_text(), html


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A page as it is read, its Markdown and its HTML."""
    return write(tmp_path_factory.mktemp("report"))


def test_the_page_and_its_markdown_say_the_same(plain):
    read, markdown, _ = plain
    rendered = MarkdownIt("commonmark").enable("table").render(markdown)
    shown = ["An introduction.", "One (first)", "Part", "group", "12.5", "more", "7"]
    for text in shown:
        assert text in read.text and text in Page(rendered).text
    assert "![what it shows](plots/pretraining.png)" in markdown


def test_the_page_fetches_nothing(plain):
    read, _, html = plain
    for tag, attributes in read.tags:
        assert tag not in ("link", "script", "iframe", "object", "embed", "base")
        for name in ("src", "srcset", "data", "background", "poster"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, name)
    assert not re.search(r"url\(|@import", html)


def test_contents_lead_to_sections_of_which_some_are_folded(plain):
    read, markdown, html = plain
    ids = {attributes["id"] for _, attributes in read.tags if "id" in attributes}
    # As GitHub makes them of "One (first)" and "Two".
    targets = [a["href"] for tag, a in read.tags if tag == "a"]
    assert targets == ["#one-first", "#two"] and ids == {"one-first", "two"}
    assert html.index("<details>") < html.index("<summary>more</summary>")
    assert "<details" not in markdown and "### yet more\n" in markdown


def test_pictures_have_a_format_and_their_numbers_beside_them(plain, tmp_path):
    _, markdown, html = write(tmp_path, suffix=".svg")
    assert "![what it shows](plots/pretraining.svg)" in markdown
    assert (tmp_path / "plots" / "pretraining.svg").read_text().startswith("<?xml")
    assert (tmp_path / "plots" / "pretraining.csv").read_text() == "x,y\n1,3\n"
    assert html.count("data:image/svg+xml") == 2
    _, *same = write(tmp_path)
    assert same == [*plain[1:]], "the same report is the same bytes"
    found = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert found == ["pretraining.csv", "pretraining.png"]
    assert (tmp_path / "plots" / "pretraining.png").read_bytes()[:4] == b"\x89PNG"


def test_a_picture_that_cannot_be_drawn_leaves_its_words(tmp_path, capsys):
    def fail():
        raise ValueError("no room")

    read, _, _ = write(tmp_path, Picture("pretraining", "the losses", fail))
    assert "WARNING: no figure" in capsys.readouterr().out
    assert "the losses" in read.text and "img" not in {tag for tag, _ in read.tags}


def test_text_of_run_folders_has_no_effect(tmp_path):
    blocks = (
        f"### {escape(NASTY)}\n\n{code_block(NASTY)}",
        NASTY,  # even if it was not escaped
        Picture("pretraining", NASTY, draw),
    )
    folded = (f"### {escape(NASTY)}\n\n{escape(NASTY)}",)
    read, markdown, _ = write(tmp_path, *blocks, title=NASTY, folded=folded)
    tags = {tag for tag, _ in read.tags}
    assert not tags & {"script", "iframe"}
    (image,) = (attributes for tag, attributes in read.tags if tag == "img")
    assert image["src"].startswith("data:") and image["alt"] == NASTY
    assert read.text.count(NASTY) == 6  # title twice, heading, block, folded twice
    shown = "<script>alert(1)</script> x <img src=//e.com>"  # as it was not escaped
    assert shown in read.text and "e.com/x.png)" not in read.text.replace(NASTY, "")
    # In Markdown, what was escaped: HTML stays text, and no picture is fetched.
    without_raw = markdown.replace(NASTY + "\n\n![", "![")
    rendered = MarkdownIt("commonmark").enable("table").render(without_raw)
    images = re.findall(r'<img src="([^"]*)"', rendered)
    assert images == ["plots/pretraining.png"] and "<script" not in rendered


def test_a_report_replaces_the_one_before_and_nothing_beside_it(tmp_path):
    earlier = [Picture(name, "old", draw) for name in ("zero_shot_2", "train_sizes")]
    write(tmp_path, *PLAIN, *earlier)
    mine = ["notes.txt", "plots/loss.png", "plots/zero_shot.png.png", "sub/report.md"]
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    page.check_folder(epath.Path(tmp_path))
    read, _, _ = write(tmp_path, title="Another")
    assert "Another" in read.text and "A title" not in read.text
    assert all((tmp_path / name).read_text() == "mine" for name in mine)
    plots = {path.name for path in (tmp_path / "plots").iterdir()}
    own = {"loss.png", "zero_shot.png.png"}
    assert plots == {"pretraining.csv", "pretraining.png", *own}


def test_pictures_behind_a_link_stay(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "zero_shot.png").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plots").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "out")
    found = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    assert found == {"zero_shot.png", "pretraining.csv", "pretraining.png"}


def test_what_a_kill_left_is_accepted_and_a_run_folder_is_not(tmp_path):
    page.check_folder(epath.Path(tmp_path / "new"))
    write(tmp_path)
    (tmp_path / f".report.md.{16 * 'a'}.partial").write_text("")
    for name in (".lock", "run.lock", f".{16 * '0'}.partial"):
        (tmp_path / name).write_text("")
    page.check_folder(epath.Path(tmp_path))
    with pytest.raises(FileExistsError, match="is a file"):
        page.check_folder(epath.Path(tmp_path / "report.md"))
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(FileExistsError, match=r"a run folder: it holds metrics\.jsonl"):
        page.check_folder(epath.Path(tmp_path))


def test_a_command_for_missing_results_stays_in_its_block():
    hostile = MarkdownIt("commonmark").parse(missing("a", "x '\n```\n# b'"))
    assert [token.type for token in hostile][-1] == "fence"
    assert "heading_open" not in {token.type for token in hostile}
