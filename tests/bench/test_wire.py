"""The benchmark's crowd of clients, also where processes cannot be forked."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from cutlayer.bench import wire, wire_child


class Thread:
    """The other end in this process, in the place of a process of its own."""

    def __init__(self, _: str, certs: str, port: str, n: str, folder: str) -> None:
        self._thread = threading.Thread(target=wire_child.clients, args=(certs, port, int(n), folder))

    def __enter__(self) -> Thread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for child in multiprocessing.active_children():  # they would wait for the server to come back
            child.kill()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_clients_are_started_where_they_cannot_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_child, "START", "spawn")
    monkeypatch.setattr(wire, "Child", Thread)
    (row,) = wire.many(repeats=1, n=2, steps=2)
    assert row["clients"] == 2 and row["ms_per_step"] > 0
