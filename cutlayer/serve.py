"""Training over a network, the server's side: clients dial in, and the run is a run like any other."""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cutlayer import backend as backends
from cutlayer import inputs
from cutlayer.cohorts.contract import agreed
from cutlayer.cohorts.elsewhere import Elsewhere
from cutlayer.cohorts.greeting import Hello, Welcome, digest, read, words
from cutlayer.cohorts.net import NetCohort, Patience, Rules
from cutlayer.cohorts.orders import sendable
from cutlayer.cohorts.roster import Roster
from cutlayer.cut import Cut, Layout, blocks_of, cut_range, probe
from cutlayer.data.source import source
from cutlayer.errors import ContractError, CutlayerError, expect
from cutlayer.flat import half
from cutlayer.net import identity
from cutlayer.net.frames import Code
from cutlayer.net.hub import Hub
from cutlayer.run import Result, Run
from cutlayer.schemes.passes import Loss
from cutlayer.train import rounds

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "unix")
LINGER = 5.0  # seconds for clients that are away when a run ends


@dataclass(frozen=True)
class Net:
    """How clients are served.

    `certs`: a folder of `cutlayer certs`; without it only this machine is served, unless `insecure`. `min_clients` must
    come before a run begins. `quorum`: the share of a round's clients that has to finish it; `over_selection` times as
    many as needed are asked. `deadline`: seconds for a step before one is known to take less; from then on it follows
    the clients. `grace`: seconds for known clients to come back after a restart. `code`: "float16" or "int8" shortens
    activations and gradients, at a loss; `zstd` compresses, at none. `give_front`: clients get the last front.
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
        host, _, port = self.listen.rpartition(":")
        expect(bool(host) and port.isdigit() and int(port) < 2**16, "listen", self.listen, "HOST:PORT")
        expect(self.min_clients >= 1, "min_clients", self.min_clients, "a whole number, at least 1")
        expect(0 < self.quorum <= 1, "quorum", self.quorum, "a share in (0, 1]")
        expect(self.over_selection >= 1, "over_selection", self.over_selection, "a factor, at least 1")
        expect(self.attempts >= 1, "attempts", self.attempts, "a whole number, at least 1")
        expect(self.deadline > 0, "deadline", self.deadline, "seconds, above 0")
        expect(self.grace >= 0, "grace", self.grace, "seconds, at least 0")
        expect(self.code in ("raw", "float16", "int8"), "code", self.code, "'raw', 'float16' or 'int8'")
        if self.certs is None and not self.insecure and host not in LOOPBACK:
            raise ContractError(
                f"listen = {self.listen!r} without certificates: whoever is on that network could read and change "
                "everything; expected certs (`cutlayer certs init`), an address of this machine alone (127.0.0.1), or "
                "insecure, spelled out"
            )


@dataclass(frozen=True)
class About:
    """What clients are told of model and data besides what the model itself says."""

    model: Mapping[str, Any] | None = None
    shape: tuple[int, ...] = ()
    task: str | None = None
    seen: Mapping[str, Any] | None = None
    class_names: tuple[str, ...] = ()


@dataclass
class Service:
    """Everything between a run and its clients. `look`: rows like theirs. `run_id`: the same after a restart."""

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

    def __post_init__(self) -> None:
        net, on = self.net, inputs.device(self.device)
        model = copy.deepcopy(self.model)
        self.layout = Layout(len(blocks_of(model)), tail=int(self.labels == "stay"))
        cuts = cut_range(self.cut, self.layout)
        dtype = half(model, self.layout.whole, on).read().w.dtype
        rows = source(self.look, dtype, "test")
        x, y = inputs.example([rows], on)
        randomness = backends.randomness(model, x, y, self.loss, on)
        with torch.no_grad():
            outputs = probe(model, x, *cuts, self.layout.tail)
        classes = inputs.classes(self.loss, outputs)
        contract = agreed(model, cuts, self.layout, rows, classes, on)
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
        who = None if net.certs is None else identity.read(net.certs, "server")
        self.hub = Hub(net.listen, who, self._admit, self._revoked)
        self.roster = Roster(self.roster_path)
        rules = Rules(net.min_clients, self._select, net.over_selection, net.quorum, net.attempts, net.code, net.zstd)
        patience = Patience(first=net.deadline, least=min(5.0, net.deadline), most=max(10 * net.deadline, 600.0))
        self.cohort = NetCohort(self.hub, self.roster, contract, patience, rules, net.grace)

    @property
    def clients(self) -> Elsewhere:
        return Elsewhere(self.look, self.roster.sizes, self.cohort)

    @contextmanager
    def open(self, run: Run) -> Iterator[None]:
        """Listen as long as the run lasts; at its end clients are told, and given the front."""
        sendable(run.setup.optimizer, run.setup.local)
        self.hub.start()
        try:
            yield
            self._farewell(run)
        except CutlayerError as error:
            self._tell({"why": str(error)}, [])
            raise
        finally:
            self.hub.stop()

    def _farewell(self, run: Run) -> None:
        """The run is over. Clients that are away have a few seconds to hear of it."""
        front: list[Tensor] = []
        if self.net.give_front and run.setup.scheme.carry != "keep":
            cut = run.setup.cuts[0]
            W_c, _ = run.state.W.split(run.setup.offsets[cut])
            front = list(W_c)
        told: set[str] = set()
        until = time.monotonic() + LINGER
        while True:
            self.cohort.poll()
            told |= self._tell({"cut": run.setup.cuts[0]}, front, told)
            if told >= set(self.roster.names) or time.monotonic() > until:
                return
            time.sleep(0.05)

    def _tell(self, what: dict[str, Any], front: list[Tensor], told: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
        there = [s for s in self.roster.sessions.copy().values() if s.name not in told]
        for session in there:
            session.send("Bye", what, front)
        return {session.name for session in there}

    def _admit(self, name: str, said: dict[str, Any]) -> dict[str, Any]:
        read(said, Hello)
        return words(self.welcome)

    def _revoked(self) -> set[str]:
        return set() if self.net.certs is None else identity.revoked(identity.place(self.net.certs, "server"))

    def _select(self, there: int) -> int:
        wanted = self.participation
        return min(wanted, there) if isinstance(wanted, int) else inputs.selected(wanted, there)


def serve(
    model: nn.Module,
    test: Any = None,
    *,
    example: Any = None,
    listen: str = "127.0.0.1:7443",
    certs: str | Path | None = None,
    insecure: bool = False,
    min_clients: int = 2,
    net: Net | None = None,
    watch: Callable[[Service], None] | None = None,
    **training: Any,
) -> Result:
    """Train `model` with clients that `cl.join`: `train`, but for the clients, which are on other machines.

    test       as in `train`: (x, y) or a dataset for the global model. Without one, `example`: a few rows like the
               clients', with labels, to try the model on
    listen     HOST:PORT; port 0 takes any that is free
    certs      the server's folder of `cutlayer certs init`; without it, loopback only, unless `insecure`
    net        all of it, and the rest (quorum, deadlines, compression), as a `cl.Net`
    watch      called once when the server listens, with the service: `service.hub.port`, `service.roster`
    training   everything else that `train` takes, but for `clients`, `devices`, `ranks` and `memory_limit`
    """
    expect(test is not None or example is not None, "test", None, "rows to test on, or `example`: a few to try")
    for field_ in ("devices", "ranks", "memory_limit", "clients"):
        expect(field_ not in training, field_, training.get(field_), "nothing: clients are on other machines")
    settings = net or Net(listen, None if certs is None else Path(certs), insecure, min_clients)
    known = {name: training[name] for name in ("cut", "labels", "loss", "participation", "device") if name in training}
    service = Service(model, example if example is not None else test, settings, **known)
    run = rounds(model, service.clients, test, **{"backend": "loop", **training})  # type: ignore[arg-type]
    with service.open(run):
        if watch is not None:
            watch(service)
        history = list(run)
    return Result(run.model, history)
