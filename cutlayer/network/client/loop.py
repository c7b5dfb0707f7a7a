"""A client's loop: dial the server, train the front when asked, and dial again when the stream breaks.

A client does not know the scheme; it follows the plans that the server sends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from cutlayer.clients.messages import Loss
from cutlayer.core import sealed
from cutlayer.core.files import as_path
from cutlayer.data.source import Source
from cutlayer.errors import AuthError, ContractError, Diverged, FrameError, Garbled, TransportError, expect
from cutlayer.network.client.session import ClientSession, Terms
from cutlayer.network.client.store import ClientStore
from cutlayer.network.protocol.contract import agreed
from cutlayer.network.protocol.handshake import Hello, Welcome, digest, read, refuse_other, words
from cutlayer.network.protocol.settings import LOOPBACK, Limits, Say, is_port
from cutlayer.network.transport import identity, plain
from cutlayer.network.transport.dial import GrpcLine, speaks_tls, waits
from cutlayer.network.transport.frames import Frame
from cutlayer.network.transport.line import Dial, Gone, Line
from cutlayer.network.transport.reload import Reminders, Watched
from cutlayer.nn.copies import twins
from cutlayer.nn.cut import Layout, blocks_of, cut_range, device_of
from cutlayer.nn.flat import Half, Style, Vectors

CLOSED = "Socket closed"  # grpc's message when a server refuses our certificate, and in other cases too
HINT = "; so does a server that does not accept a client's certificate: is it of the same authority?"
SHORT = ("Smashed", "FeatureGrad")  # messages that `code` may shorten, with loss of precision
Load = Callable[[Welcome], tuple[nn.Module, Source]]
"""Returns the model and the data, given the server's welcome."""


@dataclass(frozen=True)
class Joined:
    """What a client has at the end: its last round, and the front, if there is one (with the tail in the U-shape)."""

    rounds: int
    front: nn.Sequential | None
    path: Path | None


@dataclass(frozen=True)
class Peer:
    """The server to dial, and who we are: by certificate, or by name where there are no certificates."""

    server: str
    certs: str | Path | None = None
    name: str = ""
    insecure: bool = False
    patience: float = 3600.0  # seconds without a server before giving up
    dial: Dial = field(default_factory=lambda: GrpcLine)

    def __post_init__(self) -> None:
        host, _, port = self.server.rpartition(":")
        expect(bool(host) and is_port(port), "server", self.server, "HOST:PORT")
        expect(self.patience > 0, "patience", self.patience, "seconds, above 0")
        if self.certs is None and not self.insecure and host not in LOOPBACK:
            raise ContractError(
                f"server = {self.server!r} without certificates: expected certs, or insecure to do without them"
            )
        if self.certs is None and not self.name:
            raise ContractError("name = '': expected a name, or certs, whose certificate says it")


@dataclass(frozen=True)
class Workplace:
    """What a client provides: model and data, a folder for what it keeps, its loss, its limits and its device."""

    load: Load
    out: Path
    loss: Loss = functional.cross_entropy
    limits: Limits = field(default_factory=Limits)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        as_path("out", self.out)


class ClientLoop:
    """One client of a run. Calling it takes part until the run ends."""

    def __init__(self, peer: Peer, workplace: Workplace, say: Say = lambda line: None, warn: Say | None = None) -> None:
        """`say` and `warn` are told what happens; `warn`, by default `say`, what somebody should do something about."""
        self.peer, self.workplace, self.say = peer, workplace, say
        self.server = peer.server
        self.watched = None if peer.certs is None else Watched(as_path("certs", peer.certs), peer.name, say)
        self.name = peer.name if self.watched is None else self.watched.held.name
        self._remind = Reminders(warn or say)
        identity.check_name(self.name)
        self.remote: ClientSession | None = None
        self.welcome: Welcome | None = None

    def __call__(self) -> Joined:
        pauses, alone = waits(), time.monotonic()
        while True:
            who = None if self.watched is None else self.watched.proven()
            self._warn_of_end()
            line, there = self.peer.dial(self.server, who), False
            try:
                self._greet(line)
                pauses, there = waits(), True
                while (frame := line.receive()).kind != "Bye":
                    self._answer(line, frame)
                    alone = time.monotonic()
                return self._end(frame)
            except (Gone, FrameError) as error:
                if isinstance(error, FrameError) and not isinstance(error, Garbled):
                    raise FrameError(f"{self.server}: it sent {error}") from error
                if self.remote is not None:
                    self.remote.anew()
                if there and isinstance(error, Gone):
                    alone = time.monotonic()
                unwelcome = self.welcome is None and CLOSED in str(error)
                if unwelcome and who is None and speaks_tls(self.server):
                    raise AuthError(f"{self.server}: it shows a certificate; expected certs, to show ours") from error
                gone, hint = time.monotonic() - alone, HINT if unwelcome and who is not None else ""
                if gone > self.peer.patience:
                    raise TransportError(f"{self.server}: no answer for {gone:.0f} seconds: {error}{hint}") from error
                pause = next(pauses)
                self.say(f"{self.server}: {error}; trying again in {pause:.1f} s")
                time.sleep(pause)
            finally:
                line.close()

    def _warn_of_end(self) -> None:
        """Warn if our certificate ends soon, at most once a day."""
        if self.watched is not None:
            self._remind("", identity.warning(self.watched.held))

    def _greet(self, line: Line) -> None:
        welcome: Welcome = read(line.greet(words(Hello(name=self.name))), Welcome)
        if self.welcome is None or welcome != self.welcome:
            self.remote, self.welcome = self._begin(welcome), welcome
        assert self.remote is not None
        line.reader.limit = self.remote.limit
        line.send("Ready", {"samples": len(self.remote.source)})
        self.say(f"{self.server}: connected as {self.name}, {len(self.remote.source)} samples")

    def _begin(self, welcome: Welcome) -> ClientSession:
        """Load model and data, check them against the server's welcome, and return a new session."""
        model, rows = self.workplace.load(welcome)
        expect(len(rows) > 0, "data", "no rows", "at least one row")
        layout = Layout(len(blocks_of(model)), tail=int(welcome.labels == "stay"))
        cut_range(welcome.cuts, layout)
        refuse_other(digest(model, layout, welcome.cuts[1]), welcome.front)
        try:
            contract = agreed(model, welcome.cuts, layout, rows, welcome.classes, self.workplace.device)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:  # a model may raise any of these
            raise ContractError(f"data: the model does not accept its rows: {error}") from error
        if welcome.classes is not None:
            rows.expect_classes(welcome.classes)
        own = ClientStore(self.workplace.out / welcome.run / self.name)
        terms = Terms(model, layout, contract, Style(welcome.randomness, None))
        work = self.workplace
        return ClientSession(terms, rows, own, work.loss, work.limits, work.device)

    def _answer(self, line: Line, frame: Frame) -> None:
        remote, welcome = self.remote, self.welcome
        assert remote is not None and welcome is not None
        if frame.kind == "Refused":
            raise ContractError(f"the server refuses: {plain(frame.words.get('why'))}")
        if frame.kind == "Stop":
            n, why = (plain(frame.words.get(name)) for name in ("round", "why"))
            self.say(f"round {n}: the server goes on without us: {why}")
        before = remote.round
        for kind, said, tensors in remote.answer(frame):
            line.send(kind, said, tensors, welcome.code if kind in SHORT else "raw", welcome.zstd)
            if kind == "Report":
                self.say(f"round {said['address'][0]}: reported")
        if remote.round != before:
            self.say(f"round {remote.round}: {remote.steps} steps")
            self._warn_of_end()
        line.reader.limit = remote.limit

    def _end(self, frame: Frame) -> Joined:
        """End the run: write the front, if there is one, to a file that `cl.load` reads."""
        remote, welcome = self.remote, self.welcome
        assert remote is not None and welcome is not None
        if why := frame.words.get("why"):
            raise Diverged(f"the server ends the run: {plain(why)}")
        cut = frame.words.get("cut")
        vectors = frame.tensors
        confirmed = frame.words.get("confirmed", 0)
        if not isinstance(confirmed, int):
            raise FrameError(f"a last round {confirmed!r}")
        kept = remote.own.load(confirmed)
        if not vectors and kept.front is not None:  # the client has kept its own front
            vectors, cut = tuple(kept.front), welcome.cuts[0]
        if not vectors:
            return Joined(remote.round, None, None)
        if not isinstance(cut, int) or cut not in remote.contract.sizes or len(vectors) != 3:
            raise FrameError("a last front with a wrong cut or number of tensors")
        blocks = blocks_of(remote.model)
        which = remote.layout.client(cut)
        mine = twins(blocks)
        part = Half([mine[index] for index in which], device_of(mine))
        for vector, size, dtype in zip(vectors, part.sizes, part.dtypes, strict=True):
            if tuple(vector.shape) != (size,) or vector.dtype != dtype or not bool(torch.isfinite(vector).all()):
                found = f"{vector.dtype} {tuple(vector.shape)}"
                raise FrameError(f"a last front of {found}, expected finite {dtype} {size}")
        part.write(Vectors(*vectors))
        front = nn.Sequential(*(mine[index] for index in sorted(which)))
        path = self.workplace.out / welcome.run / self.name / "front.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"model": welcome.model, "shape": list(welcome.shape), "classes": welcome.classes, "cut": cut}
        held = "ends" if remote.layout.tail else "front"
        said = {} if welcome.model is None else {"cutlayer": json.dumps({**about, "part": held})}
        sealed.save_model(path, front.state_dict(), said)
        self.say(f"the run is over; the front is in {path}")
        return Joined(remote.round, front.eval(), path)
