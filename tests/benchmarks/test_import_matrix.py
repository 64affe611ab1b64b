"""Each kind of folder of transformers is read, or refused, as docs/results.md says."""

import pytest


@pytest.mark.slow
def test_every_kind_is_read_exactly_but_for_models_of_other_formulas():
    for package in ("torch", "transformers", "spacy"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from benchmarks.peers.import_matrix import KINDS, try_kind

    found = {kind: try_kind(make) for kind, make in KINDS.items()}
    assert {
        kind for kind, (said, _) in found.items() if not said.startswith("read")
    } == {
        "another activation (`afn`)",
        "another output matrix (`tie_word_embeddings`)",
    }
    differences = [float(each) for said, each in found.values() if said[:4] == "read"]
    assert len(differences) == 20 and max(differences) < 2e-5
