"""TensorBoard as a tracker of a run's records."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorboardX  # loads PyTorch where that is installed: 1 s, 0.1 GB
from etils import epath


class TensorBoard:
    """Writes the records of a run as TensorBoard events, anew when it resumes."""

    def __init__(self, run_folder: epath.Path, folder: Path):
        for written in map(epath.Path, (run_folder / folder.name, folder)):
            if written.exists() and not os.path.islink(written):
                written.rmtree()
        self._writer = tensorboardX.SummaryWriter(str(folder), flush_secs=1)

    def add(self, record: Mapping[str, Any]) -> None:
        """Writes each number of a record as a scalar, and each text as a text."""
        for name, value in record.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, record["step"])
            elif isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flushes and closes the events."""
        self._writer.close()
