"""More connections than a server may open: nobody is hurt but those who came to say nothing."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import cutlayer as cl
from cutlayer.core.sealed import digest
from cutlayer.network.transport import descriptors, dial, grpc_hub
from tests.forks import forked
from tests.network.harness import SOON, network, play, rows

BASE: dict[str, Any] = {"cut": 0, "rounds": 3, "batch_size": 4, "local_epochs": 1, "scheme": "smofi"}


def server(folder: str, limit: int, last: int) -> None:
    """A server and its clients in a process that may open few files; the clients come when the strangers are there."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    grpc_hub.HANDSHAKE, dial.FIRST, dial.LONGEST = 1.0, 0.05, 0.2
    out = Path(folder)

    def watch(service: Any) -> None:
        (out / "port.tmp").write_text(str(service.hub.port))
        (out / "port.tmp").rename(out / "port")
        while not (out / "there").exists():
            time.sleep(0.01)

    played = play(out, rows(), watch=watch, **{**BASE, "rounds": last})
    assert all(record.faults == () for record in played.result.history)
    seconds = sum(record.seconds for record in played.result.history[1:])
    print(digest(played.result.model.state_dict()), seconds, flush=True)


def flooded(folder: Path, silent: int, slow: int, limit: int, last: int) -> float:
    """A run of so many rounds beside so many strangers, which has the simulator's bits; the seconds of its rounds."""
    whole = cl.train(network(), rows(), test=rows()[0], backend="loop", **{**BASE, "rounds": last})
    with forked(server, str(folder), limit, last) as process, contextlib.ExitStack() as strangers:
        while not (folder / "port").exists():
            assert not process.ended, process.err
            time.sleep(0.01)
        port, there = int((folder / "port").read_text()), []
        for _ in range(silent):
            there.append(strangers.enter_context(socket.socket()))
            there[-1].setblocking(False)
            there[-1].connect_ex(("127.0.0.1", port))
        (folder / "there").touch()
        while not process.ended:
            for one in there[:slow]:  # a byte now and then
                with contextlib.suppress(OSError):
                    one.send(b"\x16")
            time.sleep(0.05)
        assert process.wait() == 0, process.err
        bits, seconds = process.out.split()
    assert bits == digest(whole.model.state_dict())
    return float(seconds)


def test_silent_and_slow_ones(tmp_path: Path) -> None:
    """Beyond the limit of open files: the bits are the simulator's."""
    flooded(tmp_path, silent=700, slow=20, limit=512, last=3)


def test_descriptors_are_kept_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    for limits, wanted, raised in (
        ((1024, 1024), 1024 - descriptors.RESERVE, []),
        ((1024, 4096), 4096 - descriptors.RESERVE, [(4096, 4096)]),
        ((1024, 10**6), descriptors.MOST, [(descriptors.MOST + descriptors.RESERVE, 10**6)]),
        ((10**6, 10**6), descriptors.MOST, []),
        ((100, 100), 50, []),
    ):
        asked.clear()
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _, found=limits: found)
        monkeypatch.setattr(descriptors.resource, "setrlimit", lambda _, pair: asked.append(pair))
        assert descriptors.connections() == wanted
        assert [pair for pair in asked if pair != limits] == raised


def test_a_failed_welcome_leaves_nobody_behind() -> None:
    """Who goes while it is welcomed is not there afterwards."""
    there = grpc_hub.GrpcHub("127.0.0.1:0", None, lambda name, words: {"more": "x" * 60_000}, set)
    there.start()
    for _ in range(20):
        line = dial.GrpcLine(f"127.0.0.1:{there.port}", None)
        line.send("Hello", {"name": "a"})
        line.close()
    until = time.monotonic() + SOON
    while there.sessions and time.monotonic() < until:
        time.sleep(0.01)
    assert there.sessions == {}
    there.stop(0.1)
