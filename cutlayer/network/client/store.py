"""The client state that a client on its own machine keeps between rounds. The state from before a round is kept until a
later plan says that the round counts."""

from __future__ import annotations

import warnings
from pathlib import Path

from cutlayer.clients.state import NOTHING, ClientState
from cutlayer.core.files import persistently, write_aside
from cutlayer.core.sealed import pack, unpack
from cutlayer.errors import Restored, StoreError


class ClientStore:
    """Files own-N.safetensors for round N, each with a copy. Old files are deleted only at the end of a round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, confirmed: int) -> ClientState:
        """Return what was kept at the end of round `confirmed` (0: nothing yet)."""
        if confirmed == 0:
            return NOTHING
        wrong: Exception | None = None
        for path in self._paths(confirmed):
            try:
                found = ClientState.read(unpack(path.read_bytes())[0])
            except (OSError, StoreError, KeyError) as error:
                wrong = wrong or error
                continue
            if wrong is not None:
                warnings.warn(f"{self._paths(confirmed)[0]}: {wrong}; read from its copy", Restored, stacklevel=2)
            return found
        raise StoreError(
            f"{self._paths(confirmed)[0]}: the server goes on from round {confirmed}, and what this client kept of it "
            f"cannot be read: {wrong}"
        ) from wrong

    def keep(self, n: int, state: ClientState, confirmed: int) -> None:
        """Write the state at the end of round n, keep the one that the round began with, and delete all others."""
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
