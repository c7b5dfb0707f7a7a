"""What a client on a machine of its own keeps there between rounds. The state it began a round with stays until the
next plan says that the round counts."""

from __future__ import annotations

from pathlib import Path

from cutlayer.clients.state import NOTHING, ClientState
from cutlayer.core.files import persistently, write_aside
from cutlayer.core.sealed import pack, unpack
from cutlayer.errors import StoreError


class ClientStore:
    """Files own-N.safetensors, N the round they are from, each there twice. Only the end of a round removes any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, confirmed: int) -> ClientState:
        """What was kept at the end of that round (0: nothing yet)."""
        if confirmed == 0:
            return NOTHING
        wrong: Exception | None = None
        for path in self._paths(confirmed):
            try:
                return ClientState.read(unpack(path.read_bytes())[0])
            except (OSError, StoreError, KeyError) as error:
                wrong = wrong or error
        raise StoreError(
            f"{self._paths(confirmed)[0]}: the server goes on from round {confirmed}, and what this client kept of it "
            f"cannot be read: {wrong}"
        ) from wrong

    def keep(self, n: int, state: ClientState, confirmed: int) -> None:
        """The end of round n, beside what it began with; everything else did not count, or no longer does, and goes."""
        persistently(lambda: self.folder.mkdir(parents=True, exist_ok=True), self.folder)
        content = pack(state.named())
        for path in self._paths(n):
            write_aside(path, content)
        for other in set(self._rounds()) - {n, confirmed}:
            for path in self._paths(other):
                path.unlink(missing_ok=True)

    def _rounds(self) -> list[int]:
        names = (path.name.split(".")[0].removeprefix("own-") for path in self.folder.glob("own-*.safetensors"))
        return sorted(int(name) for name in names if name.isdigit())

    def _paths(self, n: int) -> tuple[Path, Path]:
        return self.folder / f"own-{n}.safetensors", self.folder / f"own-{n}.again.safetensors"
