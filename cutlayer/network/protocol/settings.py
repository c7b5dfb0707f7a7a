"""The settings of a server, and the limits of a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cutlayer.core.files import as_path
from cutlayer.errors import ContractError, expect, is_number
from cutlayer.network.transport import Code

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LONGEST = 1_000_000  # seconds: the longest deadline for a step
Say = Callable[[str], None]


def is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 2**16


@dataclass(frozen=True)
class Net:
    """The settings of a server.

    `certs`: a folder of `cutlayer certs`; without it only this machine is served, unless `insecure`. `min_clients`: how
    many must connect before the run begins. `quorum`: the share of a round's clients that must finish it for it to
    count. `over_selection`: how many times as many clients as needed are asked. `attempts`: tries at one round.
    `deadline`: seconds for a step, until it is known how long answers take. `grace`: seconds for known clients to come
    back after a restart. `code`: "float16" or "int8" shortens activations and gradients, with loss of precision.
    `zstd`: compress everything, without loss. `give_front`: send clients the front at the end.
    """

    listen: str = "127.0.0.1:7443"
    certs: Path | None = None
    insecure: bool = False
    min_clients: int = 2
    quorum: float = 0.5
    over_selection: float = 1.0
    attempts: int = 20
    deadline: float = 60.0
    grace: float = 60.0
    code: Code = "raw"
    zstd: bool = False
    give_front: bool = True

    def __post_init__(self) -> None:
        if self.certs is not None:
            as_path("certs", self.certs)
        host, _, port = self.listen.rpartition(":")
        expect(bool(host) and is_port(port), "listen", self.listen, "HOST:PORT")
        expect(self.min_clients >= 1, "min_clients", self.min_clients, "a whole number, at least 1")
        expect(0 < self.quorum <= 1, "quorum", self.quorum, "a share in (0, 1]")
        factor = is_number(self.over_selection) and self.over_selection >= 1
        expect(factor, "over_selection", self.over_selection, "a finite factor, at least 1")
        expect(self.attempts >= 1, "attempts", self.attempts, "a whole number, at least 1")
        expect(0 < self.deadline <= LONGEST, "deadline", self.deadline, f"seconds, above 0 and up to {LONGEST:,}")
        expect(self.grace >= 0, "grace", self.grace, "seconds, at least 0")
        expect(self.code in ("raw", "float16", "int8"), "code", self.code, "'raw', 'float16' or 'int8'")
        if self.certs is None and not self.insecure and host not in LOOPBACK:
            raise ContractError(
                f"listen = {self.listen!r} without certificates: whoever is on that network could read and change "
                "everything; expected certs (`cutlayer certs init`), an address of this machine alone (127.0.0.1), or "
                "insecure, spelled out"
            )


@dataclass(frozen=True)
class Limits:
    """The most that a server may ask of a client. A client that is asked for more leaves at once."""

    steps: int = 100_000  # in a round
    rate: float = 100.0  # the learning rate
    batch: int = 65_536
    parameters: int = 1_000_000_000  # of the whole model

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            expect(is_number(value) and value > 0, f"limit: {name}", value, "a finite number above 0")
