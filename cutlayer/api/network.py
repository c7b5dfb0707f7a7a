"""Training over a network, from Python: `serve` on one machine, `join` on the others.

The extra packages they need (pip install cutlayer[net]) are imported when one of them is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from cutlayer.api.reported import tracking, with_report
from cutlayer.clients.messages import Loss
from cutlayer.core.devices import chosen
from cutlayer.core.extras import needs
from cutlayer.engine.assemble import assemble, in_blocks
from cutlayer.engine.options import Options
from cutlayer.engine.run import Result
from cutlayer.errors import expect
from cutlayer.experiment.program import Resume, Where, recorded, serve_table
from cutlayer.network.protocol.settings import Limits, Net, Say
from cutlayer.nn.copies import twin
from cutlayer.track.tracked import with_trackers

if TYPE_CHECKING:
    from cutlayer.network.client.loop import Joined
    from cutlayer.network.server.service import Service


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
    out: str | Path | None = None,
    resume: Resume = "auto",
    checkpoint_every: int = 1,
    track: str | Sequence[str] | None = None,
    **training: Any,
) -> Result:
    """Train `model` with clients on other machines, which take part by `cl.join`; everything else is as in `train`.

    test       as in `train`: rows for the global model, in any form. Without them, `example`: a few rows like the
               clients', with labels, to try the model on
    listen     HOST:PORT; port 0 takes any that is free
    certs      the server's folder of `cutlayer certs init`; without it, loopback only, unless `insecure`
    net        all of it, and the rest (quorum, deadlines, compression), as a `cl.Net`
    out        as in `train`: a folder for every round. After a crash the same call goes on, and the clients come back
               by themselves; `resume`, `checkpoint_every` and `track` are those of `train` too
    watch      called once when the server listens, with the service: `service.hub.port`, `service.roster`
    training   everything else that `train` takes, but for `clients`, `profile`, `ranks`, `stack` and `memory_limit`
    """
    needs("net")
    from cutlayer.network.server import roster
    from cutlayer.network.server.service import Service

    expect(test is not None or example is not None, "test", None, "rows to test on, or `example`: a few to try")
    for field_ in ("profile", "ranks", "stack", "memory_limit", "clients"):
        expect(field_ not in training, field_, training.get(field_), "nothing: clients are on other machines")
    settings = net or Net(listen, None if certs is None else Path(certs), insecure, min_clients)
    trackers = tracking(track, out)
    where = None if out is None else Where(Path(out), resume, checkpoint_every)
    known = {name: training[name] for name in ("cut", "labels", "loss", "participation", "device") if name in training}
    rows, table = example if example is not None else test, serve_table(where, settings)
    model = in_blocks(model, [rows])
    clients = where.out / roster.FILE if where is not None and where.exists else None
    service = Service(model, rows, settings, **known, run_id=table["run"], roster_path=clients)
    options = Options(**{"backend": "loop", **training})
    run = assemble(model, service.clients, test, options)
    if where is not None:
        run = with_report(recorded(run, model, options, where, table), where.out)
        run = with_trackers(run, where.out, trackers)
        service.roster.path = where.out / roster.FILE
    with service.open(run):
        if watch is not None:
            watch(service)
        for _ in run:
            pass
    return Result(run.model, run.history)


def join(
    server: str,
    data: Any,
    *,
    model: nn.Module,
    certs: str | Path | None = None,
    name: str = "",
    out: str | Path = "joined",
    loss: Loss = functional.cross_entropy,
    limits: Limits = Limits(),
    patience: float = 3600.0,
    device: str | torch.device = "cpu",
    insecure: bool = False,
    say: Say = lambda line: None,
) -> Joined:
    """Take part in a training that `cl.serve` has started, until it ends.

    server     HOST:PORT
    data       what this client holds, and never sends, in any form that `train` takes
    model      the whole model, as the server has it; only the client's blocks are trained here
    certs      this client's folder of `cutlayer certs client`; its name is in the certificate
    name       where there are no certificates
    out        a folder for what this client keeps between rounds, and for the front at the end
    loss       where labels stay with the client
    limits     what a server may ask of this client
    patience   seconds without a server before giving up
    device     of torch, where this client computes; "auto": the one there is
    insecure   dial another machine without certificates
    say        called with a line when something happens
    """
    needs("net")
    from cutlayer.data.source import Source, source
    from cutlayer.network.client.loop import ClientLoop, Peer, Workplace
    from cutlayer.network.protocol.handshake import Welcome
    from cutlayer.network.transport.frames import DTYPES

    def load(welcome: Welcome) -> tuple[nn.Module, Source]:
        return in_blocks(twin(model), [data]), source(data, DTYPES[welcome.dtype], "data")

    peer = Peer(server, certs, name, insecure, patience)
    return ClientLoop(peer, Workplace(load, Path(out), loss, limits, chosen(device)), say)()
