"""What `cutlayer bench` measures, one function for each table. Times in a ratio are measured side by side."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cutlayer.api.train import rounds
from cutlayer.bench.cases import AIMS, CASES, Case
from cutlayer.bench.rivals import DECAY, MOMENTUM, RATE, Centralised, Naive
from cutlayer.bench.timing import interleaved, ratio, spread
from cutlayer.engine.backend import cores
from cutlayer.engine.exchange import Exchange
from cutlayer.engine.run import Run
from cutlayer.nn.blocks import as_blocks
from cutlayer.optim.sgd import SGD
from cutlayer.registry import SCHEMES
from cutlayer.schemes.smofi import Fused

Row = dict[str, Any]
OURS = SGD(lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
FOREVER = 10**9


def run(case: Case, scheme: str = "smofi", threads: int | None = None, backend: str = "auto", **more: Any) -> Run:
    """A simulation of the case, with one local epoch per round and without tests."""
    return rounds(
        more.pop("model", None) or case.build(),
        more.pop("clients", None) or case.data(),
        cut=case.cut,
        loss=case.loss,
        scheme=scheme,
        optimizer=OURS,
        rounds=FOREVER,
        batch_size=case.batch,
        local_epochs=1,
        backend=backend,
        threads=threads,
        **more,
    )


def throughput(names: list[str], quick: bool, repeats: int) -> Iterator[Row]:
    """Our speed over that of centralised training, and of a naive simulation of the same clients."""
    for name in names:
        case = smaller(CASES[name]) if quick else CASES[name]
        data, model = case.data(), case.build()
        ours = run(case, model=model, clients=data)
        blocks = as_blocks(model, data[0][0][:2])
        plays: dict[str, Callable[[], object]] = {
            "plain": Centralised(model, data, case.batch, tuned=False, loss=case.loss),
            "tuned": Centralised(model, data, case.batch, tuned=True, loss=case.loss),
            "naive": Naive(blocks, case.cut, data, case.batch, case.loss),
            "ours": ours.__next__,
        }
        seconds = interleaved(plays, repeats)
        row: Row = {
            "model": name,
            "clients": case.clients,
            "batch": case.batch,
            "backend": ours.setup.backend.words,
            "ms_per_step": 1000 * statistics.median(seconds["ours"]) / (case.clients * case.steps),
            "samples_per_second": case.samples / statistics.median(seconds["ours"]),
        }
        for rival, aim in zip(("plain", "tuned", "naive"), AIMS[name], strict=True):
            row[rival] = ratio(seconds[rival], seconds["ours"])._asdict() | {"aim": aim}
        yield row


def schemes(quick: bool, repeats: int) -> Iterator[Row]:
    """The speed of every scheme over that of plain centralised training on the same samples."""
    case = smaller(CASES["tiny-cnn"]) if quick else CASES["tiny-cnn"]
    plain = Centralised(case.build(), case.data(), case.batch, tuned=False)
    for name in ("fedavg", "smofi", "cyclesfl") if quick else SCHEMES:
        ours = run(case, name)
        seconds = interleaved({"plain": plain, "ours": ours.__next__}, repeats)
        found = ratio(seconds["plain"], seconds["ours"])
        yield {"scheme": name, "model": case.name, "backend": ours.setup.backend.name, "plain": found._asdict()}


def fusion(quick: bool, repeats: int) -> Iterator[Row]:
    """What fusing costs: SMoFi's step against FedAvg's, and the share of a step that updates and fuses."""
    for name, aim in (("femnist-cnn", 0.12), ("resnet18", 0.05))[: 1 if quick else 2]:
        case = smaller(CASES[name]) if quick else CASES[name]
        fused, plain = run(case), run(case, "fedavg")
        with Stopwatch(Fused, "_fuse") as watch:
            seconds = interleaved({"fedavg": plain.__next__, "smofi": fused.__next__}, repeats)
        extra = [1 - a / b for a, b in zip(seconds["fedavg"], seconds["smofi"], strict=True)]
        share = watch.seconds / watch.calls * case.steps / statistics.median(seconds["smofi"])
        yield {"model": name, "fusion": spread(extra)._asdict() | {"aim": aim}, "update_and_fusion": share}


def clients(quick: bool, repeats: int) -> Iterator[Row]:
    """Seconds of a round for growing numbers of selected clients, and of registered clients."""
    tiny = CASES["tiny-cnn"]
    for n in (1, 10, 20) if quick else (1, 2, 5, 10, 20, 50, 100, 200):
        ours = run(replace(tiny, clients=n))
        seconds = interleaved({"ours": ours.__next__}, repeats)["ours"]
        yield {"selected": n, "registered": n, "seconds": statistics.median(seconds)}
    data = replace(tiny, clients=20).data()
    for registered in (10_000,) if quick else (20, 1000, 100_000, 1_000_000):
        ours = run(tiny, clients=[data[j % 20] for j in range(registered)], participation=20)
        seconds = interleaved({"ours": ours.__next__}, repeats)["ours"]
        yield {"selected": 20, "registered": registered, "seconds": statistics.median(seconds)}


def overhead(quick: bool, repeats: int) -> Iterator[Row]:
    """The share of a round that is neither training nor testing: opening, averaging, the record."""

    for name in ("tiny-cnn", "femnist-cnn"):
        case = replace(CASES[name], steps=20 if quick else 60, clients=2 if quick else CASES[name].clients)
        ours = run(case)
        next(ours)
        shares = []
        for _ in range(repeats):
            with Stopwatch(Exchange, "_wave") as watch:
                began = time.perf_counter()
                next(ours)
                shares.append(1 - watch.seconds / (time.perf_counter() - began))
        yield {"model": name, "steps": case.steps, "overhead": spread(shares)._asdict() | {"aim": 0.02}}


def memory(quick: bool) -> Iterator[Row]:
    """Bytes per selected client and parameter of the back, from how a process's peak memory grows with clients."""
    few, many = (2, 6) if quick else (4, 24)
    with ThreadPoolExecutor(cores()) as pool:  # in parallel, because nothing is timed here
        for scheme, aim in (("smofi", 8.0), ("fedavg", None))[: 1 if quick else 2]:
            less, more = pool.map(_peak, (scheme, scheme), (few, many))
            counted = less["peak"] is not None and more["peak"] is not None
            grown = (more["peak"] - less["peak"]) / (many - few) / less["server_parameters"] if counted else None
            yield {"scheme": scheme, "bytes_per_parameter_and_client": grown, "aim": aim}


def processes(quick: bool, repeats: int) -> Iterator[Row]:
    """The speed of two processes over that of one, each with one thread, on the same rounds."""
    name = "tiny-cnn" if quick else "resnet18"
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(1 if quick else max(1, repeats // 2)):
        for size in seconds:
            seconds[size] += ranked(name) if quick and size == 1 else _ranks(name, size)
    for size, found in seconds.items():
        yield {
            "processes": size,
            "model": name,
            "seconds": statistics.median(found),
            "speed": statistics.median(seconds[1]) / statistics.median(found),
            "aim": 1.5 if size == 2 else None,
        }


def ranked(name: str) -> list[float]:
    """Seconds of three rounds in this process, which may be one of several ranks, with one thread."""
    ours = run(replace(CASES[name], clients=4 if name == "resnet18" else 20), threads=1, ranks="ordered")
    next(ours)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        next(ours)
        seconds.append(time.perf_counter() - began)
    return seconds


class Stopwatch:
    """Counts the calls of a method, and the seconds spent in it, inside a `with` block."""

    def __init__(self, owner: type, name: str) -> None:
        self.owner, self.name, self.seconds, self.calls = owner, name, 0.0, 0

    def __enter__(self) -> Stopwatch:
        self.real = getattr(self.owner, self.name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return self.real(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began
                self.calls += 1

        setattr(self.owner, self.name, timed)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.real)


def smaller(case: Case) -> Case:
    """A smaller case, for --quick."""
    if case.name in ("tiny-cnn", "mlp"):
        return replace(case, steps=1)
    heavy = case.name.startswith(("resnet", "transformer"))
    return replace(case, clients=2, steps=2 if case.name == "femnist-cnn" else 1, batch=3 if heavy else case.batch)


def _peak(scheme: str, clients: int) -> dict[str, float]:
    return _child([sys.executable, "-m", "cutlayer.bench.child", "peak", scheme, str(clients)])


def _ranks(name: str, size: int) -> list[float]:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(size), "--standalone"] if size > 1 else []
    found = _child([sys.executable, *launch, "-m", "cutlayer.bench.child", "ranks", name])
    return list(found["seconds"])


def _child(command: list[str]) -> dict[str, Any]:
    """Run a command, and return the JSON in the last line that it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)  # noqa: S603
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def machine() -> Row:
    """The machine that the figures come from."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8", errors="replace").splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"processor": names[0] if names else platform.machine(), "cores": cores(), "torch": torch.__version__}
