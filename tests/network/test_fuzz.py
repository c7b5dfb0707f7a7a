"""A hundred thousand broken frames: each is refused, or is a valid message. Memory stays, and so do honest runs."""

from __future__ import annotations

import collections
import gc
import itertools
import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import torch
from torch import Tensor

import cutlayer as cl
from cutlayer.errors import ContractError, FrameError, StoreError
from cutlayer.network.client.loop import ClientLoop, Peer, Workplace
from cutlayer.network.protocol.handshake import Hello, Welcome, digest, read, words
from cutlayer.network.server.roster import Roster
from cutlayer.network.transport import identity
from cutlayer.network.transport.frames import Frame, Reader, written
from cutlayer.network.transport.grpc_hub import METHOD, OPTIONS
from cutlayer.network.transport.hub import GREETING
from tests.network.fuzz import KINDS, Fuzzer
from tests.network.harness import NAMES, SOON, certs, network, play, rows
from tests.network.hostile_client import unhurried
from tests.network.raw_client import LIMITS, RawClient, frame_of, memory_of, played, raw_client
from tests.network.test_bits import same

FRAMES, SEED = 40_000, 2026  # `make nightly` has a million
DOWN = ("Plan", "Features", "CutGrad", "Adopt", "Bye")
GROWTH = 50 * 2**20
Heard = Callable[[Frame], bool]
"""Give a frame to whoever it is for; whether it changed anything there."""


@dataclass
class Target:
    """A real frame, the limit it was under, and whoever it was for."""

    kind: str
    piece: bytes
    limit: int
    heard: Heard


def piece_of(kind: str, said: dict[str, Any], tensors: Sequence[Tensor], *how: Any) -> bytes:
    (piece,) = written(kind, said, tensors, *how)
    return piece


def finite(found: Any) -> bool:
    """Whatever a message holds."""
    if isinstance(found, Tensor):
        return bool(torch.isfinite(found).all())
    if isinstance(found, float):
        return math.isfinite(found)
    parts = found if isinstance(found, tuple | list) else list(getattr(found, "__dict__", {}).values())
    return all(finite(part) for part in parts)


def to_server(at: RawClient, step: int) -> Heard:
    def heard(frame: Frame) -> bool:
        contract = at.remote.contract
        contract.late(frame, at.plan)
        message = contract.message(frame, at.plan, replace(at.plan.address, step=step), at.samples)
        assert finite(message) and type(message).__name__ == frame.kind
        return True

    return heard


def to_client(at: RawClient, before: Sequence[Frame]) -> Heard:
    """A client at that point of its round; after anything that moved it, it is brought there again."""
    remote, there = at.remote, [()]

    def place() -> tuple[Any, ...]:
        client = remote.client
        if client is None or remote.plan is None:
            return (None,)
        return (remote.plan, client.here(), client.waits, client.tail_done)

    def heard(frame: Frame) -> bool:
        if place() != there[0]:
            remote.anew()
            for one in before:
                remote.answer(one)
            there[0] = place()
        answers = remote.answer(frame)
        assert all(kind in KINDS and len(said["address"]) == 4 for kind, said, _ in answers)
        return bool(answers)

    return heard


def keeping(folder: Path) -> RawClient:
    """A client that has kept its half since round 3."""
    at = raw_client(folder, keeps_half=True, keeps_memory=True)
    collections.deque(played(at), maxlen=0)
    assert {path.name for path in folder.iterdir()} == {"own-3.safetensors", "own-3.again.safetensors"}
    at.remote.anew()
    at.plan = replace(at.plan, start=None, confirmed=3, address=replace(at.plan.address, round=4))
    return at


def remembering(folder: Path) -> RawClient:
    """A client that is given an optimizer's memory, and reports it."""
    at = raw_client(folder, shares_memory=True, optimizer=cl.Adam(lr=0.01))
    at.plan = replace(at.plan, memory=memory_of(at.plan))
    return at


MAKERS: tuple[Callable[[Path], RawClient], ...] = (  # between them, every message
    lambda folder: raw_client(folder, samples=9),
    lambda folder: raw_client(folder, "stay"),
    lambda folder: raw_client(folder, local=cl.FedNAR(max_norm=0.5)),
    lambda folder: raw_client(folder, fuses=True, optimizer=cl.NAG(lr=0.1)),
    remembering,
    keeping,
)


def joining(at: RawClient, welcome: Welcome, out: Path) -> ClientLoop:
    """A client at the end of its run."""
    work = Workplace(lambda _: (network(), at.remote.source), out, limits=LIMITS)
    made = ClientLoop(Peer("127.0.0.1:1", name="a", patience=1.0), work)
    made.remote, made.welcome = at.remote, welcome
    return made


def targets(folder: Path) -> list[Target]:
    found: list[Target] = []
    for n, make in enumerate(MAKERS):
        at, before = make(folder / f"{n}"), []
        limit, own = at.remote.contract.limit(at.plan), iter(range(1000))
        for way, (kind, said, tensors) in played(at):
            piece = piece_of(kind, said, tensors)
            if way == "down":
                there = to_client(make(folder / f"{n}-{next(own)}"), tuple(before))
                found.append(Target(kind, piece, limit, there))
                before.append(frame_of(kind, said, tensors))
            else:
                heard = to_server(at, said["address"][2])
                short = piece_of(kind, said, tensors, "int8" if kind == "Smashed" else "raw", True, True)
                found += [Target(kind, piece, limit, heard), Target(kind, short, limit, heard)]
        stop = {"round": at.plan.address.round, "attempt": 0, "why": "late"}
        there = to_client(make(folder / f"{n}-stop"), before[:1])
        found.append(Target("Stop", piece_of("Stop", stop, ()), limit, there))
    at = raw_client(folder / "end")
    front = digest(at.remote.model, at.remote.layout, 0)
    welcome = Welcome("abc", (0, 0), "send", "float32", front, "none", "raw", False, {"name": "mlp"}, (4,), 3)
    end, roster = joining(at, welcome, folder / "joined"), Roster()
    session = SimpleNamespace(name="a", alive=True)
    assert at.plan.start is not None
    bye = piece_of("Bye", {"cut": 0}, list(at.plan.start))

    def greets(kind: type[Any]) -> Heard:
        return lambda frame: read(frame.words, kind) is not None

    def ready(frame: Frame) -> bool:
        roster.enrol(session, frame.words.get("samples"))  # type: ignore[arg-type]
        return True

    return [
        *found,
        Target("Hello", piece_of("Hello", words(Hello(name="a")), ()), GREETING, greets(Hello)),
        Target("Welcome", piece_of("Welcome", words(welcome), ()), GREETING, greets(Welcome)),
        Target("Ready", piece_of("Ready", {"samples": 12}, ()), GREETING, ready),
        Target("Bye", bye, at.remote.limit, lambda frame: end._end(frame).front is not None),
    ]


def resident() -> int:
    """Bytes that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_broken_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Path] = []
    monkeypatch.setattr("cutlayer.core.sealed.save_model", lambda path, *_: saved.append(path))
    known = targets(tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("own-3.*")}
    assert {target.kind for target in known} >= set(KINDS[:15]) - {"Refused"}
    fuzzer = Fuzzer([target.piece for target in known], SEED)
    often = list(itertools.accumulate(1 if target.kind in DOWN else 5 for target in known))  # those compute
    refused, accepted, ways = collections.Counter(), collections.Counter(), collections.Counter()
    unread = idle = most = begin = 0
    for n in range(FRAMES):
        if n % 500 == 0 and Path("/proc/self/statm").exists():
            most = max(most, resident())
            begin = most if n == 5000 else begin  # caches are warm by then
        (target,) = fuzzer.dice.choices(known, cum_weights=often)
        way, piece = fuzzer.one(target.piece)
        try:
            frame = Reader(target.limit).read(piece)
            if frame is None:
                unread += 1
            elif target.heard(frame):
                accepted[target.kind] += 1
                ways[way, True] += 1
            else:
                idle += 1
        except FrameError:
            refused[target.kind] += 1
            ways[way, False] += 1
        except ContractError:
            assert target.kind in ("Ready", "Bye")
            refused[target.kind] += 1
        except StoreError:
            assert target.kind == "Plan" and frame is not None and frame.words["confirmed"] != 3
            refused[target.kind] += 1
    print(f"refused {refused.total():,}, accepted {accepted.total():,}, idle {idle:,}, unfinished {unread:,}")
    print(f"refused {dict(refused)}\naccepted {dict(accepted)}\n{dict(ways)}\nmemory {(most - begin) / 2**20:.1f} MiB")
    kinds = {target.kind for target in known}
    assert all(refused[kind] > 40 for kind in kinds - {"Stop"}), refused
    assert all(accepted[kind] > 8 for kind in kinds - {"Stop"}), accepted
    assert refused.total() > FRAMES / 2 and accepted.total() > FRAMES / 20
    assert ways["untouched", True] > 400 and ways["absurd", True] + ways["noise", True] < 100
    assert most - begin < GROWTH
    assert saved and len(kept) >= 4
    assert all(path.read_bytes() == content for path, content in kept.items()), "what clients kept"


class Counting(Reader):
    """How many pieces a hub has read."""

    read_so_far = 0

    def read(self, piece: bytes) -> Frame | None:
        Counting.read_so_far += 1
        return super().read(piece)


def test_broken_frames_while_others_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Over sockets and TLS, by a client with a good certificate: the others' bits are the simulator's."""
    unhurried(monkeypatch)
    monkeypatch.setattr("cutlayer.network.transport.grpc_hub.Reader", Counting)
    monkeypatch.setattr("cutlayer.network.transport.hub.VISITS", 10_000)
    Counting.read_so_far = 0
    streams, rounds, per = 960, 6, 8
    pieces = [target.piece for target in targets(tmp_path / "frames") if target.kind != "Ready"]
    fuzzer = Fuzzer(pieces, SEED, [kind for kind in KINDS if kind != "Ready"])
    hello = piece_of("Hello", words(Hello()), ())
    ended: collections.Counter[str] = collections.Counter()
    share = [threading.Event() for _ in range(rounds)]

    def intrude(port: int) -> None:
        who = identity.read(certs() / NAMES[3])
        trust = grpc.ssl_channel_credentials(who.ca, who.key, who.cert)
        with grpc.secure_channel(f"127.0.0.1:{port}", trust, OPTIONS) as channel:
            dial = channel.stream_stream(METHOD)
            for n in range(streams):
                first = [] if n % 4 == 0 else [hello]
                sent = [*first, *(fuzzer.one()[1] for _ in range(per))]
                reader, kinds = Reader(GREETING), []
                try:
                    kinds = [frame.kind for piece in dial(iter(sent), timeout=SOON) if (frame := reader.read(piece))]
                    ended[" ".join(kinds)] += 1
                except grpc.RpcError as error:
                    ended[error.code().name] += 1
                if (n + 1) % (streams // rounds) == 0:
                    share[n * rounds // streams].set()

    threads: list[threading.Thread] = []

    def watch(service: Any) -> None:
        threads.append(threading.Thread(target=intrude, args=(service.hub.port,), daemon=True))
        threads[0].start()
        available = service.cohort.available

        def waits(n: int, everybody: Any) -> Any:
            while not share[n - 1].wait(0.01):
                service.cohort.poll()
            return available(n, everybody)

        service.cohort.available = waits

    arguments = {"cut": 0, "rounds": rounds, "batch_size": 4, "local_epochs": 1, "scheme": "smofi"}
    with caplog.at_level(logging.ERROR):
        run = play(tmp_path, rows()[:3], watch=watch, **arguments)
        gc.collect()
    threads[0].join(SOON)
    print(f"{Counting.read_so_far:,} pieces read; streams ended: {dict(ended)}")
    assert not caplog.records, caplog.text
    assert ended.total() == streams and set(ended) == {"Refused", "Welcome"}, ended
    assert Counting.read_so_far > 2000
    simulated = cl.train(network(), rows()[:3], test=rows()[0], backend="loop", **arguments)
    assert same(run.result.model, simulated.model)
    assert all(record.faults == () and record.clients == (0, 1, 2) for record in run.result.history)
    assert run.service.roster.names == list(NAMES[:3])
