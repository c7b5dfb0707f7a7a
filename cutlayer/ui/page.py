"""A page to watch a run over the network: learning curves and clients, live. Read-only, and only for this machine.

/         the page            /state    what it shows, as JSON"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from cutlayer.errors import ContractError, expect
from cutlayer.experiment.experiment import Experiment
from cutlayer.network.server.service import Service
from cutlayer.network.transport import free

HOST = "127.0.0.1"
CONNECTIONS = 32  # at a time; more are closed at once, so that they take no descriptors from the run
SILENCE = 10.0  # seconds in which a new connection must say something
NOTHING_FROM_ELSEWHERE = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


def check(port: int) -> None:
    """Refuse a port on which the page cannot be served."""
    expect(0 <= port < 2**16, "ui", port, "a port, 0 to 65535")
    free("ui", f"{HOST}:{port}")


@contextmanager
def shown(experiment: Experiment, service: Service, port: int) -> Iterator[str]:
    """Serve the page while the context lasts; yield its address."""
    check(port)
    given = uvicorn.Config(app(experiment, service), HOST, port, http=Bounded, log_level="critical", lifespan="off")
    server = uvicorn.Server(given)
    thread = threading.Thread(target=server.run, name="cutlayer-ui", daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until:
            raise ContractError(f"ui = {port}: nothing can be served there; expected a port that is free")
        time.sleep(0.02)
    try:
        found = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://{HOST}:{found}"
    finally:
        server.should_exit = True
        thread.join(5)


class Bounded(H11Protocol):
    """A connection that is closed where there are too many, or where it says nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(SILENCE, self.timeout_keep_alive_handler)


def app(experiment: Experiment, service: Service) -> Starlette:
    page = resources.files("cutlayer.ui").joinpath("page.html").read_text(encoding="utf-8")
    headers = {"content-security-policy": NOTHING_FROM_ELSEWHERE, "cache-control": "no-store"}

    async def index(request: Request) -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    async def current(request: Request) -> JSONResponse:
        return JSONResponse(state(experiment, service), headers=headers)

    ours = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])  # against DNS rebinding
    return Starlette(routes=[Route("/", index), Route("/state", current)], middleware=[ours])


def state(experiment: Experiment, service: Service) -> dict[str, Any]:
    """Everything that the page shows."""
    config, sessions = experiment.config, dict(service.roster.sessions)
    clients = []
    for j, entry in enumerate(list(service.roster.entries)):
        session = sessions.get(j)
        clients.append(
            {
                "name": entry.name,
                "samples": entry.samples,
                "round": entry.round,
                "step": entry.step,
                "seconds": entry.seconds,
                "drops": entry.drops,
                "connected": session is not None,
                "bytes": 0 if session is None else session.up + session.down,
            }
        )
    rounds = [
        {
            "n": r.n,
            "accuracy": r.accuracy,
            "loss": r.loss if r.loss is not None and math.isfinite(r.loss) else None,
            "participants": r.participants,
            "lost": r.lost,
            "seconds": r.seconds,
            "faults": r.faults,
        }
        for r in list(experiment.history)
    ]
    about = {"task": config.task, "scheme": config.scheme["name"], "rounds": config.rounds, "out": str(experiment.out)}
    return {**about, "status": service.cohort.status, "clients": clients, "history": rounds}
