"""A run that serves has a run directory like any other: the same files, report and resume, the simulator's weights."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.core import sealed, toml
from cutlayer.errors import ContractError, CutlayerError, Restored, StoreError
from cutlayer.experiment import description, run_directory, server_directory
from cutlayer.experiment.client_data import ClientData
from cutlayer.experiment.config import Config, parse
from cutlayer.experiment.experiment import Experiment
from cutlayer.network.client.loop import ClientLoop, Joined, Peer, Workplace
from cutlayer.network.protocol.settings import Limits, Net
from cutlayer.network.server import service
from cutlayer.network.server.roster import Roster, natural
from cutlayer.network.server.service import Service
from tests.network.harness import SOON, certs

SMALL = {
    **{"model": {"name": "mlp", "width": 8}, "cut": 0, "rounds": 2, "batch_size": 4, "local_epochs": 1},
    **{"optimizer": {"name": "sgd", "lr": 0.1}},
}
NAMES = ("client-10", "client-1", "client-2")
THREADS = (
    "ignore:the model has drawn random numbers"  # clients in threads seed the generator they share with the server
)
pytestmark = pytest.mark.filterwarnings(THREADS)
NET = Net("127.0.0.1:0", min_clients=len(NAMES), deadline=240.0, grace=10.0)


def arrays(path: Path, rows: int, seed: int, classes: int = 3, width: int = 5) -> Path:
    """An NPZ file with that many rows of floats."""
    rng = np.random.default_rng(seed)
    np.savez(path, x=rng.normal(size=(rows, width)).astype(np.float32), y=np.arange(rows) % classes)
    return path


def files(folder: Path) -> dict[str, Path]:
    """The clients' rows, and the server's."""
    held = {name: arrays(folder / f"{name}.npz", 10 + 4 * j, j) for j, name in enumerate(NAMES)}
    return {**held, "server": arrays(folder / "server.npz", 30, 7), "test": arrays(folder / "test.npz", 20, 8)}


def config(data: Mapping[str, Path], **more: Any) -> Config:
    return parse({**SMALL, "data": str(data["server"]), "data_test": str(data["test"]), **more})


def joining(port: int, name: str, path: Path, out: Path, said: list[str] | None = None) -> ClientLoop:
    lines = [] if said is None else said
    peer = Peer(f"127.0.0.1:{port}", name=name, patience=20.0)
    return ClientLoop(peer, Workplace(ClientData(path, Limits()), out), lines.append)


@dataclass
class Hosted:
    """A run that served, and what its clients ended with: by name."""

    out: Path
    experiment: Experiment
    service: Service
    ended: dict[str, Joined | BaseException]

    @property
    def summary(self) -> dict[str, Any]:
        return run_directory.read_summary(self.out) or {}


def attend(
    experiment: Experiment, served: Service, data: Mapping[str, Path], joined: Path, first: bool = False
) -> Hosted:
    """The run, with a client for each of `data`; `first`: it goes on once all of them have connected."""
    ended: dict[str, Joined | BaseException] = {}

    def client(name: str) -> None:
        try:
            ended[name] = joining(served.hub.port, name, data[name], joined)()
        except BaseException as error:  # told to the test
            ended[name] = error

    threads = [threading.Thread(target=client, args=(name,), daemon=True) for name in data]
    with served.open(experiment.run):
        for thread in threads:
            thread.start()
        while first and len(ended) + len(served.roster.connected) < len(data):
            served.cohort._handle(served.hub.next(0.01))
        list(experiment)
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive(), "a client hangs"
    return Hosted(experiment.out, experiment, served, ended)


def host(folder: Path, net: Net = NET, **more: Any) -> Hosted:
    data = files(folder)
    started = server_directory.start(config(data, **more), net, folder / "run")
    return attend(*started, {name: data[name] for name in NAMES}, folder / "joined")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTLAYER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Hosted:
    return host(tmp_path_factory.mktemp("hosted"))


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a[0] == b[0] and a[1].equal(b[1]) for a, b in pairs)


def fronts(run: Hosted) -> list[nn.Module]:
    """What `cl.load` reads of each client's front."""
    found = []
    for name, client in run.ended.items():
        assert isinstance(client, Joined) and client.path is not None, client
        assert client.rounds == 2 and client.path.parent.name == name and client.path.name == "front.safetensors"
        found.append(cl.load(client.path))
        assert client.front is not None and same(client.front, found[-1])
    assert len(found) == len(NAMES)
    return found


def test_the_same_files_as_a_simulated_run(hosted: Hosted, tmp_path: Path) -> None:
    assert main(["report", str(hosted.out), "--quiet"]) == 0
    simulated = Experiment.start(config(files(tmp_path), clients=3, partition={"name": "iid"}), tmp_path / "run")
    list(simulated)
    assert main(["report", str(tmp_path / "run"), "--quiet"]) == 0
    ours, theirs = ({path.name for path in out.iterdir()} for out in (hosted.out, tmp_path / "run"))
    assert ours - theirs == {"roster.json", ".roster.json"} and theirs <= ours
    assert {"model.safetensors", "front.safetensors", "back.safetensors", "report.html", "journal.jsonl"} <= ours
    lines = [json.loads(line) for line in (hosted.out / "journal.jsonl").read_text().splitlines()]
    assert [line["n"] for line in lines] == [1, 2] and [line["clients"] for line in lines] == [[0, 1, 2]] * 2
    assert hosted.summary["status"] == "complete" and hosted.summary["rounds"] == 2
    assert hosted.summary["best_accuracy"] is not None and hosted.summary["bytes_up"] > 0


def test_what_it_saved_can_be_loaded(hosted: Hosted) -> None:
    model, front, back = (cl.load(hosted.out / f"{part}.safetensors") for part in ("model", "front", "back"))
    x = torch.randn(6, 5)
    assert back(front(x)).equal(model(x)) and model(x).shape == (6, 3)
    assert hosted.summary["sha256"] == sealed.digest(load_file(hosted.out / "model.safetensors"))
    assert all(same(front, theirs) for theirs in fronts(hosted))


def test_report_shows_it(hosted: Hosted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(hosted.out)]) == 0
    said = capsys.readouterr().out
    assert "of 2\n" in said and f"sha256 {hosted.summary['sha256']}" in said
    assert main(["clock", str(hosted.out), "--profile", "lte"]) == 0, "as if on these devices"


def test_the_config_says_how_it_was_served(hosted: Hosted) -> None:
    path = hosted.out / "config.toml"
    net, run = server_directory.read(toml.read(path)["serve"], path)
    assert net == NET and run == hosted.service.run_id
    assert all(isinstance(client, Joined) and run in str(client.path) for client in hosted.ended.values())


def test_numbers_are_given_by_name(hosted: Hosted) -> None:
    """Whoever came first: client-2 is before client-10."""
    known = json.loads((hosted.out / "roster.json").read_bytes())["clients"]
    assert known == [
        {"name": "client-1", "samples": 14},
        {"name": "client-2", "samples": 18},
        {"name": "client-10", "samples": 10},
    ]


def session(name: str) -> Any:
    return SimpleNamespace(name=name, alive=True)


def test_newcomers_are_numbered_at_the_end(tmp_path: Path) -> None:
    assert sorted(["b2", "a10", "10", "a2", "b", "2", "a2b"], key=natural) == ["2", "10", "a2", "a2b", "a10", "b", "b2"]
    roster = Roster(tmp_path / "roster.json")
    for name in ("b", "a-10", "a-9"):
        roster.enrol(session(name), 5)
    assert not (tmp_path / "roster.json").exists(), "nothing is fixed yet"
    roster.enrol(session("b"), 6)  # it may still have other data
    roster.fix()
    roster.enrol(session("a-1"), 7)
    assert roster.names == ["a-9", "a-10", "b", "a-1"] and list(roster.sizes) == [5, 5, 6, 7]
    assert {j: one.name for j, one in roster.sessions.items()} == {0: "a-9", 1: "a-10", 2: "b", 3: "a-1"}
    again = Roster(tmp_path / "roster.json")
    assert again.names == roster.names and again.fixed and again.connected == []
    for samples in (0, -1, True, 2.0, "9", None, 2**48):
        with pytest.raises(ContractError, match=r"client c: samples = .*: expected a whole number, at least 1"):
            again.enrol(session("c"), samples)
    with pytest.raises(ContractError, match="client b: 5 samples, where it had 6; expected the same data all through"):
        again.enrol(session("b"), 5)


def test_a_complete_run_is_resumed(hosted: Hosted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is trained; who was away gets the front, also a newcomer, and other data are refused."""
    monkeypatch.setattr(service, "LINGER", 0.5)
    before = {path: path.read_bytes() for path in hosted.out.glob("*.safetensors")}
    data = files(tmp_path)
    guests = {"client-2": data["client-2"], "client-10": data["client-1"], "new": data["server"]}
    again = attend(*server_directory.resume(hosted.out), guests, tmp_path / "joined", first=True)
    assert again.service.run_id == hosted.service.run_id and len(again.experiment.history) == 2
    assert {path: path.read_bytes() for path in hosted.out.glob("*.safetensors")} == before
    front = cl.load(hosted.out / "front.safetensors")
    for name in ("client-2", "new"):
        client = again.ended[name]
        assert isinstance(client, Joined) and client.rounds == 0 and client.path is not None
        assert same(front, cl.load(client.path))
    refused = again.ended["client-10"]
    assert isinstance(refused, ContractError)
    assert "the server refuses: client client-10: 14 samples, where it had 10; expected the same data" in str(refused)
    assert [one["name"] for one in json.loads((hosted.out / "roster.json").read_bytes())["clients"]][-1] == "new"


@pytest.mark.filterwarnings("ignore:clients keep their fronts")
def test_where_clients_keep_their_fronts(tmp_path: Path) -> None:
    """The server has the back alone, and never sees the rest of the model."""
    run = host(tmp_path, scheme="psl")
    assert {path.name for path in run.out.glob("*.safetensors")} == {"back.safetensors"}
    assert not (run.out / "fronts").exists()
    assert run.summary["sha256"] == sealed.digest(load_file(run.out / "back.safetensors"))
    back, own = cl.load(run.out / "back.safetensors"), fronts(run)
    assert all(back(front(torch.randn(2, 5))).shape == (2, 3) for front in own)
    assert not any(same(own[0], other) for other in own[1:]), "each has learned from its own rows"
    assert main(["report", str(run.out), "--quiet"]) == 0


def test_the_front_is_not_given(tmp_path: Path) -> None:
    run = host(tmp_path, replace(NET, give_front=False))
    assert (run.out / "front.safetensors").exists()
    for client in run.ended.values():
        assert isinstance(client, Joined) and (client.front, client.path, client.rounds) == (None, None, 2)
    assert list((tmp_path / "joined").rglob("*.safetensors")) == []


def test_the_simulator_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the parts that `cutlayer partition --export` writes; eleven, so that their order matters."""
    monkeypatch.chdir(tmp_path)
    n, parts = 11, ["--train-rows", "200"]
    assert main(["partition", *parts, "--clients", str(n), "--dirichlet", "5", "--export", "parts"]) == 0
    flags = ["--model", "mlp", "--model.width", "8", "--cut", "0", "--batch-size", "4", "--rounds", "2"]
    flags += ["--local-epochs", "1", "--quiet"]
    who = ["--clients", str(n), "--partition", "dirichlet", "--partition.gamma", "5"]
    assert main(["run", *parts, *who, *flags, "--backend", "loop", "--out", "simulated"]) == 0
    data = {f"client-{j}": tmp_path / "parts" / f"client-{j}.npz" for j in range(n)}
    assert sorted(path.name for path in Path("parts").iterdir()) == sorted(f"{name}.npz" for name in data)
    given = parse({**SMALL, "task": "digits", "optimizer": "sgd", "train_rows": 200})
    run = attend(*server_directory.start(given, replace(NET, min_clients=n), Path("run")), data, Path("joined"))
    simulated = run_directory.read_summary(Path("simulated"))
    assert simulated is not None and run.summary["sha256"] == simulated["sha256"]
    assert run.summary["best_accuracy"] == simulated["best_accuracy"]
    assert (run.summary["bytes_up"], run.summary["bytes_down"]) == (simulated["bytes_up"], simulated["bytes_down"])


def test_an_overwritten_run_is_forgotten(tmp_path: Path) -> None:
    data, out = files(tmp_path), tmp_path / "run"
    server_directory.start(config(data), NET, out)
    (out / "roster.json").write_text('[{"name": "gone", "samples": 3}]')
    with pytest.raises(StoreError, match="already holds a run: continue it with `cutlayer resume"):
        server_directory.start(config(data), NET, out)
    _, served = server_directory.start(config(data), NET, out, overwrite=True)
    assert served.roster.names == [] and not served.roster.fixed and not (out / "roster.json").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"quorom": 1.0}, "unknown setting 'quorom': did you mean 'quorum'\\? valid: attempts, "),
        ({"min_clients": "two"}, "min_clients = 'two': expected a whole number"),
        ({"min_clients": 2.5}, "min_clients = 2.5: expected a whole number"),
        ({"min_clients": True}, "min_clients = True: expected a whole number"),
        ({"min_clients": 0}, "min_clients = 0: expected a whole number, at least 1"),
        ({"quorum": "half"}, "quorum = 'half': expected a number"),
        ({"quorum": 0}, r"quorum = 0: expected a share in \(0, 1\]"),
        ({"quorum": 1.01}, r"quorum = 1.01: expected a share in \(0, 1\]"),
        ({"quorum": float("nan")}, "quorum = nan: expected a share"),
        ({"over_selection": 0.9}, "over_selection = 0.9: expected a finite factor, at least 1"),
        ({"over_selection": float("inf")}, "over_selection = inf: expected a finite factor, at least 1"),
        ({"attempts": 0}, "attempts = 0: expected a whole number, at least 1"),
        ({"deadline": 0}, "deadline = 0: expected seconds, above 0 and up to 1,000,000"),
        ({"deadline": float("inf")}, "deadline = inf: expected seconds, above 0 and up to 1,000,000"),
        ({"grace": -1}, "grace = -1: expected seconds, at least 0"),
        ({"code": "int4"}, "code = 'int4': expected 'raw', 'float16' or 'int8'"),
        ({"code": 8}, "code = 8: expected a text"),
        ({"zstd": "yes"}, "zstd = 'yes': expected true or false"),
        ({"give_front": 1}, "give_front = 1: expected true or false"),
        ({"listen": 7443}, "listen = 7443: expected a text"),
        ({"listen": "7443"}, "listen = '7443': expected HOST:PORT"),
        ({"listen": ":7443"}, "listen = ':7443': expected HOST:PORT"),
        ({"listen": "127.0.0.1:70000"}, "listen = '127.0.0.1:70000': expected HOST:PORT"),
        ({"listen": "127.0.0.1:\u00b2"}, "expected HOST:PORT"),
        ({"listen": "0.0.0.0:7443"}, r"without certificates.*expected certs \(`cutlayer certs init`\).*127\.0\.0\.1"),
        ({"certs": 5}, "certs = 5: expected a text"),
        ({"certs": True}, "certs = True: expected a text"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        server_directory.settings(given)


def test_settings_that_are_taken() -> None:
    assert server_directory.settings({}) == Net()
    assert server_directory.settings({"quorum": 1, "deadline": 3}) == Net(quorum=1, deadline=3)
    assert server_directory.settings({"listen": "0.0.0.0:1", "insecure": True}).insecure
    assert server_directory.settings({"listen": "0.0.0.0:1", "certs": "c"}).certs == Path("c")
    for place in ("localhost:0", "[::1]:0", "127.0.0.1:65535"):
        assert server_directory.settings({"listen": place}).listen == place


@pytest.mark.parametrize(
    ("field", "value"), [("clients", 4), ("profile", "lte"), ("memory_limit", 100.0)], ids=lambda v: str(v)
)
def test_what_only_simulated_clients_have(tmp_path: Path, field: str, value: Any) -> None:
    given = config(files(tmp_path), **{field: value})
    with pytest.raises(ContractError, match=rf"{field} = .*{value}.*: clients are on other machines; expected no"):
        server_directory.start(given, NET, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_where_nobody_can_listen_nothing_is_written(tmp_path: Path) -> None:
    given = config(files(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ContractError, match=f"listen = '{place}': Address already in use; expected HOST:PORT of"):
            server_directory.start(given, replace(NET, listen=place), tmp_path / "run")
    with pytest.raises(ContractError, match=r"certs = .*ward-0.*: expected the server's certificate, not a client's"):
        server_directory.start(given, replace(NET, certs=certs() / "ward-0"), tmp_path / "run")
    with pytest.raises(StoreError, match=r"expected key\.pem, cert\.pem and ca\.pem in it"):
        server_directory.start(given, replace(NET, certs=tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("serve = 5", "serve = 5: expected a table"),
        ("[serve]\nquorum = 0.5", r"config.toml: damaged: no `run` in \[serve\]"),
        ('[serve]\nrun = "../../x"', r"config.toml: damaged: no `run` in \[serve\]"),
        ('[serve]\nrun = "a1"\nquorum = 7', r"damaged: \[serve\]: quorum = 7: expected a share in \(0, 1\]"),
        ('[serve]\nrun = "a1"\nquorun = 7', r"damaged: \[serve\]: unknown setting 'quorun'"),
    ],
)
def test_settings_that_cannot_be_are_named(hosted: Hosted, tmp_path: Path, table: str, said: str) -> None:
    out = shutil.copytree(hosted.out, tmp_path / "run")
    path = out / "config.toml"
    before, _, _ = path.read_text().partition("[serve]")
    path.write_text(f"{table}\n{before}" if "=" in table.splitlines()[0] else f"{before}{table}\n")
    with pytest.raises(CutlayerError, match="it has changed since the run began: serve"):
        server_directory.resume(out)
    with pytest.raises(CutlayerError, match=said):
        server_directory.resume(out, "accept")


@pytest.mark.parametrize("content", ['{"clients": [{"name": "a", "samp', '[{"name": "a"}]', "5", "\x00\ufffd"])
def test_a_damaged_roster_is_read_from_its_copy(hosted: Hosted, tmp_path: Path, content: str) -> None:
    out = shutil.copytree(hosted.out, tmp_path / "run")
    names = Roster(out / "roster.json").names
    (out / "roster.json").write_text(content)
    with pytest.warns(Restored, match=r"roster.json: damaged: .*; read from its copy"):
        assert Roster(out / "roster.json").names == names != []
    (out / ".roster.json").write_text(content)
    with pytest.raises(StoreError, match=r"roster.json: damaged: "):
        server_directory.resume(out)


@pytest.mark.parametrize("content", [None, b"listen = ", b"\xff\x00"])
def test_a_damaged_description_is_written_again(hosted: Hosted, tmp_path: Path, content: bytes | None) -> None:
    out = shutil.copytree(hosted.out, tmp_path / "run")
    path = out / "config.toml"
    before = path.read_text()
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.warns(Restored, match=r"config.toml: .*; written again, as the run was"):
        experiment, service = server_directory.resume(out)
    assert path.read_text() == before and service.run_id == hosted.service.run_id and experiment.run.finished


def test_a_run_that_serves_is_known_as_one_from_its_first_file_on(tmp_path: Path) -> None:
    """Killed after any of the writes of its start, it is nothing yet, or a run that serves; never a simulation."""
    given, n = config(files(tmp_path)), 0
    while True:
        out = tmp_path / f"run-{n}"
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            dies_at(patch, out, n)
            server_directory.start(given, NET, out)
            break
        if (out / "config.toml").exists():
            assert description.serves(out, None)
        else:
            assert not [path for path in out.rglob("*") if not path.name.startswith(".")]
        n += 1
    assert n == 5  # config, blocks, weights, manifest, and the folder of the checkpoint


def dies_at(patch: pytest.MonkeyPatch, out: Path, fatal: int) -> None:
    """The process ends before it gives its file number `fatal` below `out` its name."""
    seen, real = itertools.count(), Path.replace

    def replace(path: Path, target: Path) -> Path:
        if path.is_relative_to(out) and next(seen) == fatal:
            raise KeyboardInterrupt
        return real(path, target)

    patch.setattr(Path, "replace", replace)
