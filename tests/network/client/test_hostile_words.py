"""Servers that lie in their first words or their last, repeat themselves, or send what is no frame."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.errors import ContractError, FrameError
from cutlayer.network.client.loop import Joined
from cutlayer.network.protocol.codec import encode
from cutlayer.network.protocol.handshake import words
from cutlayer.network.transport.frames import LAST, LENGTH, Frame
from cutlayer.network.transport.hub import Connection
from cutlayer.network.transport.line import Refused
from tests.network.harness import NAMES, certs, network, play, rows
from tests.network.hostile_client import unhurried
from tests.network.hostile_server import files, kept, leaves, met, nan, plan, welcome
from tests.network.test_bits import same


def quiet(session: Connection, frame: Frame) -> None:
    """A server that says nothing more; the client should be gone by now."""
    raise AssertionError(f"the client went on, with a {frame.kind}")


WELCOMES: dict[str, tuple[dict[str, Any], str]] = {
    "another front": ({"front": "0123456789abcdef"}, "front"),
    "no front": ({"front": ""}, "front"),
    "another version": ({"version": 1}, "protocol version 1, expected 2"),
    "no version": ({"version": None}, "protocol version None"),
    "a run that leads away": ({"run": "../../../somewhere"}, "run = '../../../somewhere'"),
    "a run from the root": ({"run": "/tmp/somewhere"}, "run = '/tmp/somewhere'"),
    "a run that is the folder": ({"run": "."}, "run = '.'"),
    "a run without a name": ({"run": ""}, "run = ''"),
    "a type nobody knows": ({"dtype": "float99"}, "dtype = 'float99'"),
    "another type": ({"dtype": "float64"}, "the model does not accept its rows"),
    "cuts in the wrong order": ({"cuts": [1, 0]}, "cuts = (1, 0)"),
    "a cut beyond the model": ({"cuts": [0, 3]}, "cut = (0, 3)"),
    "cuts beyond memory": ({"cuts": [0, 2**62]}, "cut = (0, 4611686018427387904)"),
    "a cut below 0": ({"cuts": [-1, 0]}, "cuts = (-1, 0)"),
    "another cut": ({"cuts": [1, 1]}, "front"),
    "labels at will": ({"labels": "sell"}, "an invalid Welcome"),
    "labels that stay": ({"labels": "stay"}, "front"),
    "fewer classes": ({"classes": 2}, "data"),
    "no classes at all": ({"classes": 0}, "classes = 0"),
    "a code nobody knows": ({"code": "pickle"}, "an invalid Welcome"),
    "chance of another kind": ({"randomness": "mine"}, "an invalid Welcome"),
    "bytes in the model": ({"model": {"name": b"x"}}, "an invalid Welcome"),
    "sides below 0": ({"shape": [-4]}, "shape = (-4,)"),
    "a word more": ({"exec": "rm"}, "an invalid Welcome"),
}


@pytest.mark.parametrize("name", WELCOMES)
def test_a_hostile_welcome(tmp_path: Path, name: str) -> None:
    changes, match = WELCOMES[name]
    said = {word: value for word, value in {**words(welcome()), **changes}.items() if value is not None}
    home = tmp_path / "a" / "b" / "c" / "joined"
    kept(home, "send")
    before = files(tmp_path)
    error = met(home, quiet, said)
    assert isinstance(error, ContractError) and match in str(error), repr(error)
    assert files(tmp_path) == before


def ended(*tensors: Tensor, **said: Any) -> Callable[[Connection, Frame], None]:
    """A server that ends the run at once, with this."""

    def script(session: Connection, frame: Frame) -> None:
        session.send("Bye", said, tensors)

    return script


FRONT = plan().start or ()
BYES: dict[str, tuple[Callable[[Connection, Frame], None], str]] = {
    "NaN": (ended(nan(FRONT[0]), *FRONT[1:], cut=0), "expected finite"),
    "infinite statistics": (ended(FRONT[0], nan(FRONT[1], math.inf), FRONT[2], cut=0), "expected finite"),
    "too long": (ended(torch.ones(57), *FRONT[1:], cut=0), "a last front of torch.float32 (57,)"),
    "doubles": (ended(FRONT[0].double(), *FRONT[1:], cut=0), "a last front of torch.float64"),
    "too few": (ended(*FRONT[:2], cut=0), "a last front with a wrong cut or number of tensors"),
    "too many": (ended(*FRONT, FRONT[0], cut=0), "a last front with a wrong cut or number of tensors"),
    "another cut": (ended(*FRONT, cut=1), "a last front with a wrong cut or number of tensors"),
    "a cut in words": (ended(*FRONT, cut="0"), "a last front with a wrong cut or number of tensors"),
    "cuts": (ended(*FRONT, cut=[0]), "a last front with a wrong cut or number of tensors"),
    "no cut": (ended(*FRONT), "a last front with a wrong cut or number of tensors"),
    "above the limit": (ended(torch.ones(99_999), cut=0), "a frame of more than"),
}


@pytest.mark.parametrize("name", BYES)
def test_a_hostile_end(tmp_path: Path, name: str) -> None:
    leaves(tmp_path, *BYES[name])


def test_a_run_that_diverged(tmp_path: Path) -> None:
    leaves(
        tmp_path, ended(why="the weights are no longer finite"), "the server ends the run: the weights", of=cl.Diverged
    )


def test_an_honest_end(tmp_path: Path) -> None:
    """The same by hand, with nothing wrong: so it was the changes that were refused."""
    kept(tmp_path, "send")
    before = files(tmp_path)
    joined = met(tmp_path, ended(*FRONT, cut=0))
    assert isinstance(joined, Joined) and joined.path is not None and joined.front is not None
    assert same(joined.front, network()[:1])
    assert files(tmp_path).keys() - before.keys() == {str(joined.path.relative_to(tmp_path))}
    assert {name: files(tmp_path)[name] for name in before} == before


GARBAGE = {
    "no frame": (b"\x05hello", "no piece of a frame"),
    "nothing": (b"", "no piece of a frame"),
    "no header": (LAST + b"ab", "a frame without a header"),
    "a header of noise": (LAST + LENGTH.pack(9) + bytes(range(200, 209)), "a header"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_frame(tmp_path: Path, name: str) -> None:
    piece, match = GARBAGE[name]
    leaves(tmp_path, lambda session, frame: session._put(piece), match)


def test_a_plan_before_a_welcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first frame is a Welcome, or a refusal: nothing else."""
    from cutlayer.network.transport import grpc_hub

    plain = grpc_hub.written
    monkeypatch.setattr(grpc_hub, "written", lambda kind, *rest, **more: plain(*encode(plan()), **more))
    leaves(tmp_path, quiet, "a 'Plan' instead of a welcome")


def test_refused(tmp_path: Path) -> None:
    """At the door, and later."""

    def refuses(session: Connection, frame: Frame) -> None:
        session.send("Refused", {"why": "no more"})

    leaves(tmp_path, refuses, "the server refuses: no more", of=ContractError)
    error = met(tmp_path, quiet, {"version": 1, "why": "?"})
    assert isinstance(error, FrameError) and not isinstance(error, Refused)


class Echo:
    """Sessions that repeat what they send: at once, or frames of the round before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
        self.sent = 0
        plain, past = Connection.send, {}

        def send(
            session: Connection, kind: str, said: dict[str, Any], tensors: Any = (), *how: Any, **more: Any
        ) -> None:
            tensors = [tensor.clone() for tensor in tensors]
            plain(session, kind, said, tensors, *how, **more)
            if kind in ("Bye", "Refused"):
                return
            again = [(kind, said, tensors)]
            if late:
                step = said["address"][2] if "address" in said else -1
                old = past.get((session.name, kind, step))
                past[session.name, kind, step] = (kind, said, tensors)
                again = [] if old is None else [old]
                if kind == "Plan" and said["address"][0] > 1:
                    again.append(("Stop", {"round": said["address"][0] - 1, "attempt": 0, "why": "late"}, []))
            for one in again:
                self.sent += 1
                plain(session, *one, *how, **more)

        monkeypatch.setattr(Connection, "send", send)


ROUNDS: dict[str, dict[str, Any]] = {
    "send": {"scheme": "smofi"},
    "stay": {"scheme": "smofi", "labels": "stay"},
    "joint": {"scheme": "sflv1", "local": cl.FedNAR(max_norm=0.5)},
    "fused": {"scheme": cl.SMoFi(fuse_clients=True)},
    "relay": {"scheme": "sflv2"},
    "keeps": {"scheme": "psl", "protocol": "cyclesl"},
}


@pytest.mark.parametrize("late", [False, True], ids=["doubled", "late"])
@pytest.mark.parametrize("name", ROUNDS)
def test_a_server_that_repeats_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, late: bool) -> None:
    """To its clients too, a frame that is doubled or late changes nothing."""
    data = rows((8, 12, 9))
    training = {"cut": 0, "rounds": 3, "batch_size": 4, "local_epochs": 1, **ROUNDS[name]}
    model = network()
    model[3] = torch.nn.Sequential(model[3], torch.nn.BatchNorm1d(3))  # a pass too many through it would show
    unhurried(monkeypatch)
    echo = Echo(monkeypatch, late)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="clients keep their fronts")
        played = play(tmp_path, data, model=model, **training)
        simulated = cl.train(model, data, test=data[0], backend="loop", **training)
    keeps = name == "keeps"
    assert echo.sent > 10 and all(record.faults == () for record in played.result.history)
    assert same(played.result.model[keeps:], simulated.model[keeps:])
    for j, client in enumerate(played.clients):
        assert isinstance(client, Joined) and client.front is not None
        if keeps:
            assert same(client.front, simulated.clients[j][:1])


GUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown model": ({"model": {"name": "resnet999"}}, "unknown model 'resnet999'"),
    "a model without a name": ({"model": {}}, "parameters without a name"),
    "a model of its own": ({"model": None}, "the server trains a model of its own"),
    "a parameter nobody knows": ({"model": {"name": "mlp", "hook": 1}}, "hook"),
    "a width in words": ({"model": {"name": "mlp", "width": "wide"}}, "the server's model"),
    "too many parameters": ({"model": {"name": "mlp", "width": 65_000}}, "at most 1,000,000,000"),
    "too deep": ({"model": {"name": "mlp", "width": 1, "depth": 10**9}}, "depth"),
    "no number of classes": ({"model": {"name": "mlp"}, "classes": None}, "no number of classes"),
    "rows of another shape": ({"model": {"name": "mlp"}, "shape": [5]}, "the server's, (5,)"),
    "rows seen otherwise": ({"model": {"name": "mlp"}, "seen": {"kind": "eval"}}, "unknown kind of rows"),
    "rows seen by NaN": ({"model": {"name": "mlp"}, "seen": {"kind": "features", "mean": "x"}}, "rows seen as"),
    "images padded beyond memory": ({"model": {"name": "mlp"}, "seen": {"kind": "pixels", "pad": 10**9}}, "pad"),
}


@pytest.mark.parametrize("name", GUESTS)
def test_a_guest_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A model by name is built here, from the server's words: one line of error, and nothing is written."""
    changes, match = GUESTS[name]
    x, y = rows((5,))[0]
    np.savez(tmp_path / "part.npz", x=x.numpy(), y=y.numpy())
    before = files(tmp_path)

    def join(server: str, *_: Any, out: Path, **__: Any) -> int:
        flags = {"--server": server, "--data": tmp_path / "part.npz", "--certs": certs() / NAMES[0], "--out": out}
        return main(["join", *(str(part) for pair in flags.items() for part in pair)])

    said = {**words(welcome()), "shape": [4], **changes}
    assert met(tmp_path / "out", quiet, said, join) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cutlayer: error: ") and match in line
    assert files(tmp_path) == before
