"""What the tests of studies share."""

import pytest


@pytest.fixture
def write(tmp_path):
    """`write(name, text)` makes a file; returns its path as a string."""

    def make(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make
