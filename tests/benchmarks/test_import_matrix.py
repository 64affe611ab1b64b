"""Each kind of folder of transformers is read, or refused, as docs/results.md says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
HEADING = "\n## Folders of transformers that are read\n"
TABLE = PAGE.read_text().partition(HEADING)[2].partition("\n\nMeas")[0]
ROWS = re.findall(r"^\| (.+?) \| (read|refused)", TABLE, re.MULTILINE)


def test_the_page_lists_the_kinds():
    assert len(dict(ROWS)) == len(ROWS) == 22


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "verdict"), ROWS, ids=[kind for kind, _ in ROWS])
def test_it_is_as_the_page_says(kind, verdict):
    for package in ("torch", "transformers", "spacy"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from benchmarks.peers.import_matrix import KINDS, try_kind

    assert KINDS.keys() == dict(ROWS).keys()
    said, difference = try_kind(KINDS[kind])
    assert said.startswith(verdict)
    assert verdict == "refused" or float(difference) < 2e-5
