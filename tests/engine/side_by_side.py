"""Trainings side by side in threads, while Python's garbage collector is as busy as it can be.

`main("trainings")` and `main("network")` need a process of their own, which ends by itself, whatever happens: its
watchdog needs no interpreter.

torch's generators hold a lock while they make a Python object. If the collector runs just then and frees a tensor, it
lets another thread go on; one that waits for the same lock then keeps the interpreter, and the process stands still.
Here the collector always lets another thread go on.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.network.server.service import Service

SECONDS = 200.0  # a process that stands still is ended then
DURATION = 1.0  # of the trainings
THREADS = 6


def again() -> Iterator[None]:
    """Once as usual, so that whatever is imported late is there; then with a collector that never rests."""
    yield
    gc.set_threshold(10, 1, 1)
    until = time.monotonic() + DURATION
    while time.monotonic() < until:
        yield


class Noise(nn.Module):
    """Draws from torch's global generator, by its own account."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.rand(x.shape)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 8), Noise()), nn.Dropout(0.2), nn.Linear(8, 3))


def caller() -> None:
    """Somebody who draws random numbers of their own, and holds the global generator's lock as often as they can."""
    for _ in again():
        torch.randn(8)
        torch.get_rng_state()


def trainings() -> None:
    """Several trainings, and the caller beside them."""
    x, y = torch.randn(24, 4), torch.arange(24) % 3

    def search() -> None:
        for _ in again():
            cl.train(model(), [(x[:12], y[:12]), (x[12:], y[12:])], cut=0, rounds=3, batch_size=4, threads=2)

    for thread in started([*[search] * THREADS, caller]):
        thread.join()


def network() -> None:
    """Servers one after another, each with six clients in threads of this process; some join while others train."""
    x, y, n = torch.randn(24, 4), torch.arange(24) % 3, 6
    whole = model()

    def game(out: str) -> None:
        def begin(service: Service) -> None:
            server = f"127.0.0.1:{service.hub.port}"

            def client(j: int) -> None:
                cl.join(server, (x[2 * j :], y[2 * j :]), model=whole, name=f"ward-{j}", out=out)

            clients.extend(started([functools.partial(client, j) for j in range(n)]))

        clients: list[threading.Thread] = []
        net = cl.Net("127.0.0.1:0", min_clients=2, deadline=240.0)
        cl.serve(whole, example=(x, y), net=net, watch=begin, cut=0, rounds=3, batch_size=4)
        for one in clients:
            one.join()

    beside = started([caller])
    for _ in again():
        with tempfile.TemporaryDirectory() as out:
            game(out)
    for one in beside:
        one.join()


def started(jobs: Sequence[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


def main(what: str) -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=2)
    gc.callbacks.append(lambda phase, info: time.sleep(1e-4))
    {"trainings": trainings, "network": network}[what]()
    faulthandler.cancel_dump_traceback_later()
    print("done", flush=True)
