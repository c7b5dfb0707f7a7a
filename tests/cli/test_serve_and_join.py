"""`serve`, `join`, `certs` and their kin as a user meets them: what they say, what they write, how they end."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cutlayer.cli.commands import serve
from cutlayer.cli.main import main
from cutlayer.experiment import checkpoint, run_directory, server_directory
from cutlayer.network.client.loop import ClientLoop
from cutlayer.network.server import service
from cutlayer.network.transport import dial, identity
from cutlayer.network.transport.grpc_hub import GrpcHub
from tests.experiment.test_server_directory import THREADS, arrays
from tests.network.harness import SOON, certs
from tests.network.server.test_dropouts import Breaking, once
from tests.network.server_process import after
from tests.network.test_restart import free_port

pytestmark = pytest.mark.filterwarnings(THREADS)
FLAGS = "--model mlp --model.width 8 --cut 0 --batch-size 4 --rounds 2 --local-epochs 1 --min-clients 2"
Output = Callable[[], tuple[str, str]]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, and no long waits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUTLAYER_CACHE", str(tmp_path / ".cache"))
    monkeypatch.setattr(dial, "FIRST", 0.05)
    monkeypatch.setattr(dial, "LONGEST", 0.2)
    monkeypatch.setattr(service, "LINGER", 0.5)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Output:
    """What has been said since last asked: out and err."""
    return lambda: (lambda both: (both.out, both.err))(capsys.readouterr())


def run(line: str) -> int:
    """A command; its exit code, however it ends."""
    try:
        return main(line.split())
    except SystemExit as end:
        return int(end.code or 0)


def joins(lines: list[str]) -> tuple[list[threading.Thread], dict[str, int]]:
    """Clients that are under way, and the exit codes of those that have ended."""
    codes: dict[str, int] = {}
    threads = [threading.Thread(target=lambda one=one: codes.update({one: run(one)}), daemon=True) for one in lines]
    for thread in threads:
        thread.start()
    return threads, codes


def ended(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive(), "a client hangs"


def data() -> None:
    for j, name in enumerate(("ward-0", "ward-1", "server", "test")):
        arrays(Path(f"{name}.npz"), 12 + 4 * j, j)


def test_certs(said: Output) -> None:
    assert run("certs init --host train.example.org --host 10.0.0.7") == 0
    out, _ = said()
    assert "a server reached as train.example.org, 10.0.0.7; next: cutlayer certs client NAME" in out
    assert "wrote certs/ca/ca.key, certs/ca/ca.pem, certs/server/key.pem" in out
    assert run("certs client ward-3 ward-10") == 0
    assert "certs/ward-3/key.pem" in (out := said()[0]) and "certs/ward-10/ca.pem" in out
    for key in Path("certs").rglob("*key*"):
        assert key.stat().st_mode & 0o077 == 0, "for its owner's eyes"
    assert run("certs list") == 0
    out, _ = said()
    assert all(name in out for name in ("server", "ward-3", "ward-10")) and "revoked" not in out
    assert run("certs revoke ward-3") == 0
    out, _ = said()
    assert "ward-3: refused from the next round on" in out and "wrote certs/server/revoked.txt" in out
    assert "is that the name?" not in out
    assert run("certs revoke wrad-10 --folder certs/server") == 0
    assert "no certificate of wrad-10 is in certs/server: is that the name?" in said()[0]
    assert identity.revoked(Path("certs/server")) == {"ward-3", "wrad-10"}
    assert run("certs list") == 0
    listed = {line.split()[0]: line.split()[1:] for line in said()[0].splitlines() if line.strip()}
    assert listed["ward-3"][-1] == "revoked" and listed["wrad-10"] == ["-", "revoked"] and len(listed["ward-10"]) == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("certs", "the following arguments are required: ACTION"),
        ("certs lst", "unknown command 'lst': did you mean 'list'? valid: init, client, renew, revoke, list"),
        ("certs list", "certs: no certificates in it; expected `cutlayer certs init` first"),
        ("certs client a", "certs: no authority in it; expected `cutlayer certs init` first"),
        ("certs client", "the following arguments are required: NAME"),
        ("certs client server", "client name = 'server': expected letters, digits, '.', '_' or '-', up to 63"),
        ("certs client ../a", "client name = '../a': expected letters"),
        ("certs client a/b", "client name = 'a/b': expected letters"),
        ("certs init --host not_a_host!", "host = 'not_a_host!': expected a host name or an IP address"),
        ("certs revoke a", "certs: no server in it; expected the folder of `cutlayer certs init`, or its server"),
    ],
)
def test_certs_that_are_refused(said: Output, line: str, why: str) -> None:
    assert run(line) == 2 and f"cutlayer: error: {why}" in said()[1]
    assert list(Path().iterdir()) == []


def test_what_is_there_is_not_made_again(said: Output) -> None:
    assert run("certs init --host a.org") == run("certs client a") == 0
    before = {path: path.read_bytes() for path in Path("certs").rglob("*.*")}
    for line, why in (
        ("certs init", "certs/ca: there is an authority already; a new one would not accept its clients"),
        ("certs client b a", "certs/a: there is a certificate already; delete the folder for a new one"),
    ):
        assert run(line) == 2 and why in said()[1]
    Path("certs/ca").rename("safe")
    assert run("certs init") == 2 and "certs/server: there is a certificate already, of an authority" in said()[1]
    assert set(Path("certs").rglob("*.*")) == {path for path in before if path.parent.name != "ca"}
    Path("certs/a/cert.pem").write_text("nonsense")
    assert run("certs list") == 2 and "certs/a/cert.pem: a damaged certificate" in said()[1]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "serve",
            ["examples:", "cutlayer serve --task digits --min-clients 2", "cutlayer certs init --host", "--quorum"],
        ),
        (
            "serve",
            ["(default: 2)", "(default: 0.5)", "127.0.0.1:7443", "(default port: 7480)", "`cutlayer resume OUT`"],
        ),
        (
            "join",
            ["examples:", "cutlayer join --server train.example.org:7443 --certs", "(default: joined)", "--data PATH"],
        ),
        (
            "join",
            ["(default: 3600)", "(default: a billion)", "a learning rate above this (default: 100)", "(default: x)"],
        ),
        ("certs", ["examples:", "cutlayer certs revoke ward-3", "keep FOLDER/server on the server"]),
        ("certs init", ["usage: cutlayer certs init", "may be repeated", "(default: certs)"]),
        ("partition", ["--export", "to try `serve` and `join` on one machine"]),
        ("bench", ["--net", "mutual TLS"]),
    ],
)
def test_help_teaches(said: Output, command: str, words: list[str]) -> None:
    assert run(f"{command} --help") == 0
    out = " ".join(said()[0].split())
    assert [word for word in words if word not in out] == []


def test_help_of_serve_has_nothing_of_simulated_clients(said: Output) -> None:
    run("serve --help")
    out, _ = said()
    assert set(server_directory.ALONE) < set(serve.SIMULATED)
    assert not [name for name in serve.SIMULATED if f"--{name.replace('_', '-')} " in out] and "--partition." not in out


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (
            "--listen 0.0.0.0:7443",
            "listen = '0.0.0.0:7443' without certificates: whoever is on that network could read",
        ),
        ("--listen 7443", "listen = '7443': expected HOST:PORT"),
        ("--quorum 0", "quorum = 0: expected a share in (0, 1]"),
        ("--quorum half", "quorum = 'half': expected a number"),
        ("--min-clients 0", "min_clients = 0: expected a whole number, at least 1"),
        ("--min-clients 1.5", "min_clients = 1.5: expected a whole number"),
        ("--over-selection inf", "over_selection = inf: expected a finite factor, at least 1"),
        ("--attempts none", "attempts = 'none': expected a whole number"),
        ("--deadline 0", "deadline = 0: expected seconds, above 0"),
        ("--grace -1", "grace = -1: expected seconds, at least 0"),
        ("--code int4", "code = 'int4': expected 'raw', 'float16' or 'int8'"),
        ("--certs nowhere", "nowhere: expected key.pem, cert.pem and ca.pem in it"),
        (
            "--clients 4",
            "--clients: it applies to simulated clients, and these are on other machines; --min",
        ),
        ("--memory-limit 9", "--memory-limit: it applies to simulated clients"),
        ("--partition.gamma 9", "--partition: it applies to simulated clients"),
        ("--min-client 4", "unknown flag --min-client: did you mean --min-clients?"),
        ("--ui 80000", "ui = 80000: expected a port, 0 to 65535"),
        ("--ui TAKEN", "Address already in use; expected HOST:PORT of this machine that is free"),
        ("--listen 127.0.0.1:TAKEN", "Address already in use; expected HOST:PORT of this machine that is free"),
        ("--scheme smofy", "unknown scheme 'smofy': did you mean 'smofi'?"),
        ("--preset demo --config x.toml", "--preset and --config: give one of them"),
    ],
)
def test_serve_refuses(said: Output, flags: str, why: str) -> None:
    """With exit code 2, one line, and nothing written."""
    arrays(Path("server.npz"), 12, 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flags = flags.replace("TAKEN", str(taken.getsockname()[1]))
        assert run(f"serve --data server.npz --listen 127.0.0.1:0 {flags} --out run") == 2
    out, err = said()
    assert out == "" and err.startswith("cutlayer: error: ") and why in err and err.count("\n") == 1
    assert {path.name for path in Path().iterdir()} <= {"server.npz", ".cache"}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--server 127.0.0.1", "server = '127.0.0.1': expected HOST:PORT"),
        ("--server 127.0.0.1:70000", "server = '127.0.0.1:70000': expected HOST:PORT"),
        ("--server train.example.org:7443", "without certificates: expected certs, or insecure to do without them"),
        ("--name a/b", "client name = 'a/b': expected letters"),
        ("--name= ", "name = '': expected a name, or certs, whose certificate says it"),
        ("--data nothing.npz", "data = 'nothing.npz': no such folder or file"),
        ("--patience soon", "patience = 'soon': expected seconds"),
        ("--patience 0", "patience = 0.0: expected seconds, above 0"),
        ("--device cudaa", "device = 'cudaa': not one of this machine's"),
        ("--limit-steps -5", "limit: steps = -5: expected a finite number above 0"),
        ("--limit-steps many", "argument --limit-steps: invalid float value: 'many'"),
        ("--certs nowhere", "nowhere: expected key.pem, cert.pem and ca.pem in it"),
        ("--serve x", "unknown flag --serve: did you mean --server?"),
        ("--patience 0.3", "no answer for 0 seconds: UNAVAILABLE"),
    ],
)
def test_join_refuses(said: Output, monkeypatch: pytest.MonkeyPatch, flags: str, why: str) -> None:
    clock = SimpleNamespace(monotonic=itertools.count(0, 0.2).__next__, sleep=lambda pause: None)
    monkeypatch.setattr(
        "cutlayer.network.client.loop.time", clock
    )  # each look at it takes 0.2 s, however busy the machine is
    arrays(Path("mine.npz"), 12, 0)
    assert run(f"join --server 127.0.0.1:{free_port()} --name a --data mine.npz {flags}") == 2
    *lines, err = said()[1].splitlines()
    assert err.startswith("cutlayer: error: ") and why in err
    assert all(" INFO 127.0.0.1:" in line and "; trying again in " in line for line in lines)
    assert {path.name for path in Path().iterdir()} == {"mine.npz"}


def test_join_is_told_that_it_needs_a_certificate(said: Output) -> None:
    arrays(Path("mine.npz"), 12, 0)
    hub = GrpcHub("127.0.0.1:0", identity.read(certs(), "server"), lambda name, words: {}, set)
    hub.start()
    assert run(f"join --server 127.0.0.1:{hub.port} --name a --data mine.npz --quiet") == 2
    hub.stop(0.1)
    assert said()[1].endswith("it shows a certificate; expected certs, to show ours\n")


def test_join_names_the_folders_that_there_are(said: Output) -> None:
    arrays(Path("mine.npz"), 12, 0)
    assert run(f"join --server 127.0.0.1:1 --data mine.npz --certs {certs()}") == 2
    assert "there are folders of server, ward-0, ward-1, ward-2, ward-3: expected one of them, or its name" in said()[1]
    assert run(f"join --server 127.0.0.1:1 --data mine.npz --certs {certs()}/server") == 2
    assert "client name = 'server'" in said()[1]


def test_a_whole_run(said: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server and two clients over TLS, one of which loses its connection on the way."""
    data()
    broken = Breaking(monkeypatch, once(("ward-1", 1, 2)))
    server = f"localhost:{free_port()}"
    lines = [f"join --server {server} --certs {certs()} --name ward-{j} --data ward-{j}.npz" for j in (0, 1)]
    threads, codes = joins(lines)
    own = f"serve --data server.npz --data-test test.npz --certs {certs()} --listen {server} --out run"
    assert run(f"{own} {FLAGS}") == 0
    ended(threads)
    assert list(codes.values()) == [0, 0] and broken.fired == [("ward-1", 1, 2)]
    out, err = said()
    logged = (
        "WARNING round 1: ward-1: ",
        "INFO ward-1: connected, 16 samples; ",
        f"INFO {server}: connected as ward-0, 12 samples\n",
        f"INFO {server}: connected as ward-1, 16 samples\n",
        "broken on purpose; trying again in ",
        "INFO round 2: 3 steps\n",
        "INFO round 2: reported\n",
        "INFO the run is over; the front is in joined/",
    )
    assert all(words in err for words in logged), err
    for words in (
        "own: clients on other machines, 2 rounds",
        "smofi (alpha -0.1, ",
        f"listening on {server} (mutual TLS); waiting for 2 clients\n",
        "best accuracy ",
        "of 2\n",
        "wrote run/curves.png",
    ):
        assert words in out, (words, out)
    assert "backend" not in out
    results = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert sorted(Path(result["front"]).parent.name for result in results) == ["ward-0", "ward-1"]
    assert all(Path(result["front"]).is_file() for result in results)
    last = sorted(result["rounds"] for result in results)
    assert last in ([1, 2], [2, 2])  # it may come back too late for the second
    assert f"sha256 {(run_directory.read_summary(Path('run')) or {})['sha256']}" in out
    monkeypatch.setattr(service, "LINGER", 0.0)
    assert run("resume run --quiet") == 0 and said() == ("", ""), "it is complete already"


def test_an_interrupted_server_goes_on(said: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients come back by themselves; nobody says a word where --quiet is asked for."""
    data()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", checkpoint.save)  # put back at the end
        after(checkpoint, "save", lambda out, state, about: state.n == 1, interrupt)
        server = f"127.0.0.1:{free_port()}"
        threads, codes = joins([f"join --server {server} --name ward-{j} --data ward-{j}.npz --quiet" for j in (0, 1)])
        assert run(f"serve --data server.npz --listen {server} --out run --quiet {FLAGS}") == 130
    out, err = said()
    assert (out, err) == ("", "cutlayer: interrupted; `cutlayer resume` on the output folder goes on from here\n")
    assert len(Path("run/journal.jsonl").read_text().splitlines()) == 1 and codes == {}
    assert run(f"serve --data server.npz --listen {server} --out run") == 2
    assert "run already holds a run: continue it with `cutlayer resume run`, or give --overwrite" in said()[1]
    assert run("resume run --quiet --ui 0") == 0
    ended(threads)
    assert list(codes.values()) == [0, 0] and len(Path("run/journal.jsonl").read_text().splitlines()) == 2
    out, err = said()
    err = "".join(line for line in err.splitlines(True) if "; trying again in " not in line)  # of the clients' threads
    assert err == "" and [line for line in out.splitlines() if not line.startswith("watch: http://127.0.0.1:")] == []
    assert run("report run") == 0 and "best accuracy   - after 2 rounds: never tested" in said()[0]


def test_an_interrupted_client_may_come_again(said: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(joining: ClientLoop) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClientLoop, "__call__", interrupt)
    arrays(Path("mine.npz"), 12, 0)
    assert run("join --server 127.0.0.1:1 --name a --data mine.npz") == 130
    assert said()[1] == "cutlayer: interrupted; the same command takes part again\n"


def test_a_preset_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what it says of simulated clients."""
    seen = []
    monkeypatch.setattr(serve, "attend", lambda experiment, service, args: seen.append(experiment.config) or 0)
    assert run("serve --preset demo --listen 127.0.0.1:0 --out run") == 0
    assert seen[0].clients is None and seen[0].rounds == 15 and seen[0].task == "digits"


def test_rows_are_exported(said: Output) -> None:
    assert run("partition --clients 3 --iid --train-rows 90 --export parts/of/it") == 0
    assert "wrote partition.png, parts/of/it" in said()[0]
    files = sorted(Path("parts/of/it").iterdir())
    assert [path.name for path in files] == ["client-0.npz", "client-1.npz", "client-2.npz"]
    held = [np.load(path) for path in files]
    assert [one["x"].shape for one in held] == [(30, 1, 8, 8)] * 3
    assert [one["y"].dtype for one in held] == [np.int64] * 3
    assert len(np.unique(np.concatenate([one["x"] for one in held]), axis=0)) > 80, "nobody's rows are another's"
    os.remove("partition.png")
    assert run("partition --clients 3 --export parts/of/it/client-0.npz") == 2
    assert "client-0.npz: a file; expected a folder to write the clients' rows to" in said()[1]
    assert not Path("partition.png").exists()


def test_bench_of_frames(said: Output) -> None:
    assert run("bench --net --only frames") == 0
    assert "overhead percent" in said()[0]
    assert run("bench --net --only frames --json") == 0
    found = json.loads(said()[0])["frames"]
    assert [row["KiB"] for row in found] == [64, 1024, 16384]
    assert all(0 < row["overhead_percent"] < row["aim_percent"] == 1.0 for row in found)
    assert run("bench --net --only frame") == 2 and "unknown section 'frame': did you mean 'frames'?" in said()[1]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are not installed."""
    missing: set[str] = set()
    plain = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in missing else plain(name, *rest)
    )
    return missing


@pytest.mark.parametrize(
    "line", ["serve", "join --server 127.0.0.1:1 --data . --name a", "certs list", "bench --net", "resume run"]
)
def test_packages_that_are_missing_are_named(said: Output, without: set[str], line: str) -> None:
    without |= {"grpc", "msgspec"}
    if line == "resume run":
        Path("run").mkdir()
        Path("run/config.toml").write_text("[serve]\n")
    assert run(line) == 2
    assert said()[1] == "cutlayer: error: grpc, msgspec: not installed; expected `pip install cutlayer[net]`\n"


def test_packages_of_the_page(said: Output, without: set[str]) -> None:
    without |= {"uvicorn"}
    arrays(Path("server.npz"), 12, 0)
    assert run("serve --data server.npz --listen 127.0.0.1:0 --ui --out run") == 2
    assert said()[1] == "cutlayer: error: uvicorn: not installed; expected `pip install cutlayer[ui]`\n"
    assert not Path("run").exists()
