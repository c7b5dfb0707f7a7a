"""The server of a training over a network: it waits for clients; apart from that, the run is like any other."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cutlayer.clients.remote import RemoteClients
from cutlayer.core.devices import chosen
from cutlayer.data.source import source
from cutlayer.engine import backend as backends
from cutlayer.engine import inputs
from cutlayer.engine.run import Run
from cutlayer.errors import CutlayerError, Diverged, expect
from cutlayer.network.protocol.codec import sendable
from cutlayer.network.protocol.contract import agreed
from cutlayer.network.protocol.handshake import Hello, Welcome, digest, read, words
from cutlayer.network.protocol.settings import Net
from cutlayer.network.server.cohort import NetCohort, Patience, Rules
from cutlayer.network.server.roster import Roster
from cutlayer.network.transport import identity
from cutlayer.network.transport.frames import written
from cutlayer.network.transport.grpc_hub import GrpcHub
from cutlayer.network.transport.hub import Admit, Connection, Hub
from cutlayer.network.transport.reload import Reminders
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import Cut, Layout, block_names, blocks_of, cut_range, probe
from cutlayer.nn.flat import half
from cutlayer.nn.language import next_token
from cutlayer.schemes.autograd import Loss

log = logging.getLogger(__name__)
LINGER = 5.0  # seconds for clients that are away when a run ends to come back


@dataclass(frozen=True)
class About:
    """What clients are told about model and data, beyond what follows from the model itself."""

    model: Mapping[str, Any] | None = None
    shape: tuple[int, ...] = ()
    task: str | None = None
    seen: Mapping[str, Any] | None = None
    class_names: tuple[str, ...] = ()


@dataclass
class Service:
    """Everything between a run and its clients. `look`: rows like theirs. `run_id`: stays the same after a restart."""

    model: nn.Module
    look: Any
    net: Net
    cut: Cut = 0
    labels: str = "send"
    loss: Loss = functional.cross_entropy
    participation: float | int = 1.0
    device: str | torch.device = "cpu"
    about: About = field(default_factory=About)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    roster_path: Path | None = None
    transport: Callable[[str, identity.Identity | None, Admit, Callable[[], set[str]]], Hub] = GrpcHub

    def __post_init__(self) -> None:
        net, on = self.net, torch.device("cpu")  # where the model is tried; the run itself is on `device`
        model = twin(self.model)
        self.layout = Layout(len(blocks_of(model)), tail=int(self.labels == "stay"))
        cuts = cut_range(self.cut, self.layout, block_names(model))
        self._select(1)  # raises now if `participation` is wrong
        dtype = half(model, self.layout.whole, on).read().w.dtype
        rows = source(self.look, dtype, "test")
        x, y = inputs.example([rows], on)
        randomness = backends.randomness(model, x, y, self.loss, on)
        with torch.no_grad():
            outputs, _ = probe(model, x, *cuts, self.layout.tail)
        classes = inputs.classes(self.loss, outputs)
        contract = replace(
            agreed(model, cuts, self.layout, rows, classes, on),
            device=chosen(self.device),
            tokens=int(outputs.shape[-1]) if self.loss is next_token else None,
        )
        self.welcome = Welcome(
            run=self.run_id,
            cuts=cuts,
            labels="stay" if self.layout.tail else "send",
            dtype=str(dtype)[6:],
            front=digest(model, self.layout, cuts[1]),
            randomness=randomness,
            code=net.code,
            zstd=net.zstd,
            model=None if self.about.model is None else dict(self.about.model),
            shape=self.about.shape,
            classes=classes,
            task=self.about.task,
            seen=None if self.about.seen is None else dict(self.about.seen),
            class_names=self.about.class_names,
        )
        list(written("Welcome", words(self.welcome)))  # raises now if it does not fit into a frame
        who = None if net.certs is None else identity.read(net.certs, "server")
        self._folder = None if net.certs is None else identity.place(net.certs, "server")
        self._remind = Reminders(log.warning)
        expect(who is None or who.serves, "certs", str(net.certs), "the server's certificate, not a client's")
        self.hub = self.transport(net.listen, who, self._admit, self._revoked)
        self.roster = Roster(self.roster_path)
        rules = Rules(net.min_clients, self._select, net.over_selection, net.quorum, net.attempts, net.code, net.zstd)
        least = min(max(5.0, net.deadline / 4), net.deadline)
        patience = Patience(first=net.deadline, least=least, most=max(10 * net.deadline, 600.0))
        self.cohort = NetCohort(self.hub, self.roster, contract, patience, rules, net.grace)

    @property
    def clients(self) -> RemoteClients:
        return RemoteClients(self.look, self.roster.sizes, self.cohort)

    @contextmanager
    def open(self, run: Run) -> Iterator[None]:
        """Listen as long as the run lasts; at its end, tell the clients and send them the front."""
        sendable(run.setup.optimizer, run.setup.local)
        self.check_certificate()
        self.hub.start()
        try:
            yield
            self._farewell(run)
        except Diverged as error:  # after any other error the run can be resumed, and clients wait for that
            for session in self.roster.sessions.values():
                session.send("Bye", {"why": str(error)})
            raise
        except BaseException as error:
            said = {"round": run.state.n + 1, "attempt": 0, "why": f"the server ends: {type(error).__name__}"}
            for session in list(self.roster.sessions.values()):
                session.send("Stop", said)
            raise
        finally:
            self.hub.stop()

    def _farewell(self, run: Run) -> None:
        """Tell the clients that the run is over. Those that are away have a few seconds to come back; one that comes
        again in that time may not have heard it."""
        front: list[Tensor] = []
        if self.net.give_front and run.setup.traits.carry != "keep":
            cut = run.setup.cuts[0]
            W_c, _ = run.state.W.split(run.setup.offsets[cut])
            front = list(W_c)
        told: dict[int, Connection] = {}
        until = time.monotonic() + LINGER
        while len(told) < len(self.roster.entries) and time.monotonic() < until:
            self.cohort.poll()
            for j, session in self.roster.sessions.items():
                if told.get(j) is not session:
                    confirmed = run.state.client(j).round
                    session.send("Bye", {"cut": run.setup.cuts[0], "confirmed": confirmed}, front)
                    told[j] = session
            time.sleep(0.02)

    def _admit(self, name: str, said: dict[str, Any]) -> dict[str, Any]:
        read(said, Hello)
        return words(self.welcome)

    def _revoked(self) -> set[str]:
        return set() if self._folder is None else identity.revoked(self._folder)

    def check_certificate(self) -> None:
        """Warn if the server's own certificate ends soon, at most once a day."""
        if self._folder is not None:
            with contextlib.suppress(CutlayerError):  # the hub reports what is wrong with it
                self._remind("server", identity.warning(identity.read(self._folder)))

    def _select(self, there: int) -> int:
        wanted = self.participation
        return inputs.selected(min(wanted, there) if isinstance(wanted, int) else wanted, there)
