"""/healthz and /metrics: figures for programs, on an address of their own."""

from __future__ import annotations

import collections
import json
import socket
import struct
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cutlayer.errors import ContractError
from cutlayer.network.server.roster import Entry
from cutlayer.ui import metrics


def run(alive: bool = True) -> tuple[Any, Any]:
    history = [SimpleNamespace(seconds=2.0, steps=8, lost=1, accuracy=0.5)]
    counts = collections.Counter({"streams": 5, "refused: rate": 3, "refused: client": 1})
    sessions = {"a": SimpleNamespace(up=10, down=20)}
    hub = SimpleNamespace(alive=alive, counts=counts, sessions=sessions, up=100, down=200)
    roster = SimpleNamespace(entries=[Entry("a", 12, seconds=0.25), Entry("b", 9)], connected=[0])
    service = SimpleNamespace(hub=hub, roster=roster, cohort=SimpleNamespace(status="round 2"))
    return SimpleNamespace(history=history, config=SimpleNamespace(rounds=9)), service


def asked(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_silent_readers_take_few_descriptors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics, "CONNECTIONS", 4)
    with metrics.shown(*run(), "127.0.0.1:0") as address, ExitStack() as stack:
        host, port = address.removeprefix("http://").partition("/")[0].split(":")
        silent = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(9)]
        closed = [one for one in silent[4:] if one.recv(1) == b""]
        assert len(closed) == 5
        for one in silent[:4]:  # hangs up: no error
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        status = 0
        while status != 200:
            with suppress(OSError):
                status = asked(address)[0]
    assert "Traceback" not in capsys.readouterr().err


def test_figures() -> None:
    with metrics.shown(*run(), "127.0.0.1:0") as address:
        status, said = asked(address)
    assert status == 200
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(said)
        for sample in family.samples
    }
    expected = {
        ("cutlayer_rounds_total",): 1,
        ("cutlayer_lost_clients_total",): 1,
        ("cutlayer_clients_connected",): 1,
        ("cutlayer_clients_known",): 2,
        ("cutlayer_step_seconds",): 0.25,
        ("cutlayer_answer_seconds", "a"): 0.25,
        ("cutlayer_streams_total",): 5,
        ("cutlayer_refusals_total", "rate"): 3,
        ("cutlayer_refusals_total", "client"): 1,
        ("cutlayer_bytes_total", "up"): 110,
        ("cutlayer_bytes_total", "down"): 220,
    }
    assert {key: found[key] for key in expected} == expected
    assert found[("cutlayer_peak_memory_bytes",)] > 0


@pytest.mark.parametrize(("alive", "status"), [(True, 200), (False, 503)])
def test_health(alive: bool, status: int) -> None:
    with metrics.shown(*run(alive), "127.0.0.1:0") as address:
        found, said = asked(address.replace("/metrics", "/healthz"))
        assert asked(address.replace("/metrics", "/else"))[0] == 404
    assert found == status and json.loads(said)["rounds"] == 1


def test_an_address_that_is_taken() -> None:
    with metrics.shown(*run(), "127.0.0.1:0") as address:
        place = address.split("/")[2]
        with pytest.raises(ContractError, match=f"metrics = '{place}'"), metrics.shown(*run(), place):
            pass
