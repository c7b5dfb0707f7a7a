"""What a client on a machine of its own keeps there between rounds: its front, its optimizer's memory, its place in its
data. The state it began a round with stays until the next plan says that the round counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cutlayer.errors import StoreError
from cutlayer.files import write_aside


class Own:
    """Files own-N.safetensors, N the round they are from. Only the end of a round removes any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, confirmed: int) -> dict[str, Tensor]:
        """What was kept at the end of that round (0: nothing yet)."""
        if confirmed == 0:
            return {}
        try:
            return load(self._path(confirmed).read_bytes())
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"{self._path(confirmed)}: the server goes on from round {confirmed}, and what this client kept of it "
                f"cannot be read: {error}"
            ) from error

    def keep(self, n: int, tensors: Mapping[str, Tensor], confirmed: int) -> None:
        """The end of round n, beside what it began with; everything else did not count, or no longer does, and goes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_aside(self._path(n), save({name: tensor.contiguous() for name, tensor in tensors.items()}))
        for other in set(self._rounds()) - {n, confirmed}:
            self._path(other).unlink(missing_ok=True)

    def _rounds(self) -> list[int]:
        names = (path.stem.removeprefix("own-") for path in self.folder.glob("own-*.safetensors"))
        return sorted(int(name) for name in names if name.isdigit())

    def _path(self, n: int) -> Path:
        return self.folder / f"own-{n}.safetensors"
