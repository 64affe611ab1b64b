import shutil
import types

import pytest
from etils import epath

from gpt1_jax.runs.folder import check_room


def test_a_full_disk_is_named_by_the_folder_that_is_being_made(tmp_path, monkeypatch):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=9)
    )
    place = epath.Path(tmp_path / f".run.{16 * '0'}.partial" / "run")
    check_room(place, 9, "It")
    with pytest.raises(
        OSError, match=f"{tmp_path}/run is full: It needs 0.0 MB. .* to resume"
    ):
        check_room(place, 10, "It")
