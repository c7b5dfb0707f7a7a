"""TensorBoard: one event file in `RUN/track/tensorboard`, written again from the journal when a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cutlayer.track.base import About, Row, last


class TensorBoard:
    """Scalars are in single precision, as TensorBoard has them."""

    def __init__(self, about: About, known: Sequence[Row]) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        for old in about.folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._last = last(known)
        self._writer = SummaryWriter(str(about.folder))
        files: Any = self._writer.file_writer
        shown: Any = hparams  # untyped in torch
        for part in shown(dict(about.config), {"accuracy": 0, "loss": 0}):  # the figures that TensorBoard's table shows
            files.add_summary(part)
        for one in known:
            self._add(one)
        self._writer.flush()

    def log(self, row: Row) -> None:
        self._add(row)
        self._writer.flush()

    def close(self, status: str, summary: Mapping[str, float]) -> None:
        self._add(Row(self._last, summary))
        self._writer.close()

    def _add(self, row: Row) -> None:
        self._last = row.step
        for name, value in row.values.items():
            self._writer.add_scalar(name, value, row.step)
