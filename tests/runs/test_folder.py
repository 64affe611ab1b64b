import functools
import os
import types

import pytest
from etils import epath

from gpt1_jax.runs import folder as run_folder


@pytest.mark.parametrize(
    ("usage", "needs"),
    [({"f_files": 900, "f_favail": 49}, "up to 50 files"), ({"f_files": 0}, None)],
    ids=["few files left", "no limit"],
)
def test_a_disk_without_files_left_is_full(tmp_path, monkeypatch, usage, needs):
    blocks = {"f_bavail": 99, "f_blocks": 99, "f_bfree": 99, "f_frsize": 512}
    usage = types.SimpleNamespace(**{"f_favail": 0, **blocks, **usage})
    monkeypatch.setattr(os, "statvfs", lambda folder: usage)
    place = epath.Path(tmp_path / f".run.{16 * '0'}.partial" / "run")
    room = functools.partial(run_folder.check_room, place, 10, "It")
    if needs:
        with pytest.raises(
            OSError, match=f"{tmp_path}/run is full: It needs {needs}. .* to resume"
        ):
            room()
    else:
        room()
