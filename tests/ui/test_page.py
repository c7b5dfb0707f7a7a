"""The page of `serve --ui`: what it shows, and that nobody else can read or change anything through it."""

from __future__ import annotations

import http.client
import io
import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cutlayer.cli import live
from cutlayer.core import logs
from cutlayer.errors import ContractError
from cutlayer.experiment import server_directory
from cutlayer.network.protocol.handshake import Hello, words
from cutlayer.network.server.roster import Entry
from cutlayer.network.transport.dial import GrpcLine
from cutlayer.ui import page as ui
from tests.experiment.test_server_directory import NET, THREADS, Hosted, config, files, host
from tests.network.harness import SOON

pytestmark = pytest.mark.filterwarnings(THREADS)
MARKUP = '<img src=x onerror="document.title=1"><script>document.title=2</script> & </li>'
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--virtual-time-budget=4000", "--dump-dom"),
)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTLAYER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield host(tmp_path_factory.mktemp("hosted"))


@pytest.fixture(scope="module")
def watched(hosted: Hosted) -> Any:
    """Its experiment with a fault in the first round, written by somebody who means no good; one client is away."""
    hosted.service.roster.sessions = {j: SimpleNamespace(up=5, down=6) for j in (0, 1)}  # type: ignore[misc]
    first, *rest = hosted.experiment.history
    history = [replace(first, lost=1, faults=(f"client-2: it sent {MARKUP}",)), *rest]
    return SimpleNamespace(config=hosted.experiment.config, out=hosted.out, history=history)


@pytest.fixture(scope="module")
def page(hosted: Hosted, watched: Any) -> Iterator[str]:
    with ui.shown(watched, hosted.service, 0) as address:
        yield address


def test_state(hosted: Hosted, watched: Any) -> None:
    found = ui.state(watched, hosted.service)
    assert (found["task"], found["scheme"], found["rounds"]) == ("own", "smofi", 2)
    assert found["out"] == str(hosted.out) and found["status"] == "round 2"
    assert [client["name"] for client in found["clients"]] == ["client-1", "client-2", "client-10"]
    for client, samples in zip(found["clients"], (14, 18, 10), strict=True):
        assert client["samples"] == samples and client["round"] == 2 and client["step"] == -1 and client["drops"] == 0
        assert client["seconds"] > 0
    assert [client["connected"] for client in found["clients"]] == [True, True, False]
    assert [client["bytes"] for client in found["clients"]] == [11, 11, 0]
    for record, shown in zip(watched.history, found["history"], strict=True):
        assert shown["n"] == record.n and shown["participants"] == 3 and shown["accuracy"] == record.accuracy
        assert shown["loss"] == record.loss and list(shown["faults"]) == list(record.faults)
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))


def test_state_of_numbers_that_are_none(hosted: Hosted, watched: Any) -> None:
    """A loss that is not finite has no place in JSON, nor on a curve."""
    for loss in (float("nan"), float("inf"), None):
        history = [replace(watched.history[0], loss=loss, accuracy=None)]
        found = ui.state(SimpleNamespace(**{**vars(watched), "history": history}), hosted.service)
        assert found["history"][0]["loss"] is None and found["history"][0]["accuracy"] is None
        json.dumps(found, allow_nan=False)


def test_state_while_clients_come(tmp_path: Path) -> None:
    experiment, service = server_directory.start(config(files(tmp_path)), NET, tmp_path / "run")
    with service.open(experiment.run):
        assert ui.state(experiment, service)["clients"] == []
        line = GrpcLine(f"127.0.0.1:{service.hub.port}", None)
        line.greet(words(Hello(name="ward-7")))
        line.send("Ready", {"samples": 9})
        service.cohort._wait(1, SOON)
        (client,) = ui.state(experiment, service)["clients"]
        assert client["name"] == "ward-7" and client["connected"] and client["samples"] == 9 and client["bytes"] > 0
        assert ui.state(experiment, service)["status"] == "waiting for clients: 0 of 1 are there"
        line.close()
        while service.roster.connected:
            service.cohort._handle(service.hub.next(0.1))
        (client,) = ui.state(experiment, service)["clients"]
        assert not client["connected"] and client["bytes"] == 0
        service.roster.entries.clear()  # nobody to say goodbye to


def get(url: str, **headers: str) -> tuple[int, Any, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SOON) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def test_page_and_state_are_served(page: str, hosted: Hosted, watched: Any) -> None:
    assert page.startswith("http://127.0.0.1:")
    status, headers, html = get(page)
    assert status == 200 and headers["content-type"].startswith("text/html") and "<title>cutlayer</title>" in html
    for path in ("", "/state"):
        policy = get(page + path)[1]["content-security-policy"]
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "http" not in policy
        assert get(page + path)[1]["cache-control"] == "no-store"
    status, headers, said = get(f"{page}/state")
    assert status == 200 and headers["content-type"] == "application/json"
    assert json.loads(said) == json.loads(json.dumps(ui.state(watched, hosted.service)))
    for path in ("/docs", "/openapi.json", "/../etc/passwd", "/page.html", "/checkpoints"):
        assert get(page + path)[0] == 404, path


def test_silent_connections_take_few_descriptors(hosted: Hosted, watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "CONNECTIONS", 4)
    monkeypatch.setattr(ui, "SILENCE", 0.5)
    with ui.shown(watched, hosted.service, 0) as address, ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(9)]
        for one in silent:  # too many are closed at once, the others when they have said nothing for a while
            one.settimeout(SOON)
            with suppress(ConnectionResetError):
                assert one.recv(1) == b""
        with urllib.request.urlopen(f"{address}/state", timeout=SOON) as answer:
            assert answer.status == 200


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    html = get(page)[2]
    assert set(re.findall(r"https?://[^\s\"'<>`)]*", html)) <= {"http://www.w3.org/2000/svg"}, "a name, not a place"
    assert not re.search(r"\b(src|href)\s*=|@import|url\(|<link|<iframe|innerHTML|insertAdjacent|eval\(|//cdn", html)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading(page: str, method: str) -> None:
    for path in ("/", "/state"):
        line = http.client.HTTPConnection(page.removeprefix("http://"), timeout=SOON)
        line.request(method, path, body=b"{}")
        assert line.getresponse().status == 405
        line.close()


@pytest.mark.parametrize(
    ("name", "status"),
    [("evil.example", 400), ("evil.example:7480", 400), ("127.0.0.1.evil.example", 400), ("localhost", 200)],
)
def test_a_foreign_name_is_refused(page: str, name: str, status: int) -> None:
    """Whatever address a page elsewhere makes its own name mean."""
    for path in ("/", "/state"):
        found, _, said = get(page + path, Host=name)
        assert found == status and (status == 200 or "client-1" not in said)


def test_a_port_that_cannot_be(hosted: Hosted, watched: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        why = f"ui = '127.0.0.1:{port}': Address already in use; expected HOST:PORT of this machine that is free"
        with pytest.raises(ContractError, match=why), ui.shown(watched, hosted.service, port):
            pytest.fail("it is served")
    for port in (-1, 65536, 80000):
        with pytest.raises(ContractError, match=f"ui = {port}: expected a port, 0 to 65535"):
            ui.check(port)


def test_the_port_is_free_afterwards(hosted: Hosted, watched: Any) -> None:
    with ui.shown(watched, hosted.service, 0) as address:
        port = int(address.rpartition(":")[2])
        assert get(address)[0] == 200
    with pytest.raises(urllib.error.URLError):
        get(address)
    ui.check(port)


def test_in_a_browser(page: str, watched: Any, tmp_path: Path) -> None:
    """Figures, rows of clients and curves; what somebody else wrote is shown as text."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium here")
    command = [chromium, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", page]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert '<p id="status">round 2</p>' in dom, dom[-2000:]
    assert "<title>cutlayer: own, smofi</title>" in dom and '<h1 id="title">own, smofi</h1>' in dom
    figures = dict(re.findall(r'<b id="(\w+)">([^<]*)</b>', dom))
    best = 100 * max(record.accuracy for record in watched.history)
    last = 100 * watched.history[-1].accuracy
    assert figures == {
        **{"rounds": "2 / 2", "connected": "2 / 3", "dropped": "1"},
        **{"accuracy": f"{last:.2f} %", "best": f"{best:.2f} %"},
    }
    table = dom[dom.index('<tbody id="clients">') : dom.index("</tbody>")]
    rows = [re.findall(r"<td>(?:<span[^>]*></span>)?([^<]*)</td>", row) for row in table.split("<tr")[1:]]
    assert [row[:4] for row in rows] == [
        *(["client-1", "14", "2", "done"], ["client-2", "18", "2", "done"], ["client-10", "10", "2", "done"]),
    ]
    assert [row[5] for row in rows] == ["0.0 MiB/s", "0.0 MiB/s", "away"] and table.count('class="away"') == 1
    assert dom.count("<polyline") == 2
    faults = dom[dom.index('<ul id="faults">') : dom.index("</ul>")]
    shown = MARKUP.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert faults == f'<ul id="faults"><li>round 1: client-2: it sent {shown}</li>'
    assert "<img" not in dom and "no longer answers" in dom and 'id="lost" style="display: none;"' in dom


def test_the_view_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of clients, and a line for every fault, as it was written."""
    screen = Console(file=io.StringIO(), force_terminal=True, highlight=False, color_system=None, width=120)
    monkeypatch.setattr(live, "console", screen)
    rows = [Entry("a", 12, 3, -1, 0.02), Entry("b", 9, 3, 4, 0.5, drops=2), *(Entry(f"c{k}", 1) for k in range(31))]
    roster = SimpleNamespace(entries=rows, sessions={0: SimpleNamespace(up=1, down=2)}, connected=[0])
    cohort = SimpleNamespace(status="round 4")
    service: Any = SimpleNamespace(roster=roster, cohort=cohort, check_certificate=lambda: None)
    logs.set_up()
    records = [SimpleNamespace(n=3, accuracy=0.5, lost=1, faults=("b: [red]it has left[/red]",))]

    class Experiment:
        config, history = SimpleNamespace(rounds=9), records

        def __iter__(self) -> Iterator[Any]:
            return iter(records)

    experiment: Any = Experiment()
    assert list(live.follow(experiment, service, False)) == records
    screen.print(live.LiveView(experiment, service)())
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "round 3: b: [red]it has left[/red]" in shown and "and 3 more" in shown
    assert "round 4: 1 of 9 rounds, accuracy 50.00 %; 1 clients, 1 dropped" in shown
    cells = [line.split() for line in shown.splitlines()]
    assert ["a", "12", "3", "done", "20", "ms", "0.0", "MiB/s"] in cells
    assert ["b", "9", "3", "5", "500", "ms", "away", "2"] in cells
