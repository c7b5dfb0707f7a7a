"""`cutlayer bench --device`: our rounds on an accelerator beside centralised training on it, as a block to paste."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from cutlayer.bench.cases import CASES, Case
from cutlayer.bench.rivals import Centralised, Data
from cutlayer.bench.sections import Row, machine, run, smaller
from cutlayer.bench.timing import interleaved, ratio
from cutlayer.core.devices import chosen, memory
from cutlayer.errors import expect

MIB = 2**20
BACKENDS = ("loop", "stacked")


def accelerator(name: str) -> torch.device:
    """Return the device that a name stands for; refuse the CPU, which the other sections measure."""
    device = chosen(name)
    expect(device.type != "cpu", "device", name, "an accelerator; without --device, the CPU is measured")
    return device


def about(device: torch.device) -> Row:
    """The machine and its device."""
    module, there = torch.get_device_module(device), memory(device)
    named = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    runtime = torch.version.cuda or torch.version.hip or "-"
    total = "-" if there is None else f"{there.total / 2**30:.1f} GiB"
    return {"device": f"{named} ({device})", "memory": total, "runtime": runtime, **machine()}


def rows(names: Sequence[str], device: torch.device, quick: bool, repeats: int) -> Iterator[Row]:
    """Milliseconds of a client's step, plain and in both backends, their ratio to plain training, and the peak memory
    of a round. The device is waited for before a time is taken."""
    for name in names:
        case = smaller(CASES[name]) if quick else CASES[name]
        model, host = case.build().to(device), case.data()
        seconds: list[float] = []
        row: Row = {"model": name, "clients": case.clients, "batch": case.batch, "plain_ms": 0.0}
        for how in BACKENDS:
            found, plain = _beside_plain(case, model, host, how, device, repeats)
            row |= found
            seconds += plain
        stack = row.pop("stack")
        yield row | {"plain_ms": _step(case, seconds), "stack": stack}


def _beside_plain(
    case: Case, model: nn.Module, host: Data, how: str, device: torch.device, repeats: int
) -> tuple[Row, list[float]]:
    """Return the figures of one backend, and the seconds of plain training beside it. No other run is there meanwhile;
    the first two rounds, whose memory is counted, are played before plain training begins."""
    before = _count("memory_allocated", device)
    ours = run(case, model=model, clients=host, backend=how, device=device, threads=1)
    peak = _peak(_waited(lambda: [next(ours), next(ours)], device), device)
    data = [(x.to(device), y.to(device)) for x, y in host]
    plain = Centralised(model, data, case.batch, tuned=False, loss=case.loss)
    plays: dict[str, Callable[[], object]] = {"plain": plain, "ours": ours.__next__}
    seconds = interleaved({name: _waited(play, device) for name, play in plays.items()}, repeats)
    found: Row = {
        f"{how}_ms": _step(case, seconds["ours"]),
        how: ratio(seconds["plain"], seconds["ours"])._asdict(),
        f"{how}_peak": None if peak is None or before is None else (peak - before) / MIB,
        "stack": ours.setup.stack or f"none: {ours.setup.backend.why}",
    }
    return found, seconds["plain"]


def _step(case: Case, seconds: Sequence[float]) -> float:
    """Milliseconds of a client's step."""
    return 1000 * statistics.median(seconds) / (case.clients * case.steps)


def _waited(play: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Return a function that plays and waits for the device."""

    def played() -> None:
        play()
        torch.accelerator.synchronize(device)

    return played


def _peak(play: Callable[[], object], device: torch.device) -> int | None:
    """Bytes at the peak of what is played, if the device counts them."""
    module = torch.get_device_module(device)
    if hasattr(module, "reset_peak_memory_stats"):
        module.reset_peak_memory_stats(device)
    play()
    return _count("max_memory_allocated", device) if hasattr(module, "reset_peak_memory_stats") else None


def _count(what: str, device: torch.device) -> int | None:
    """A count of a device's bytes, without those that wait to be collected; None if it does not count them."""
    gc.collect()
    counted = getattr(torch.get_device_module(device), what, None)
    return None if counted is None else int(counted(device))


def block(about: Row, rows: Sequence[Row], version: str) -> str:
    """The figures as Markdown, to paste into an issue."""
    head = ("model", "clients x batch", "plain ms", "loop ms", "over plain", "peak MiB", "stacked ms", "over plain")
    lines = [
        f"cutlayer {version}, {', '.join(f'{key} {value}' for key, value in about.items())}",
        "",
        _line((*head, "peak MiB", "stack")),
        _line(["---"] * (len(head) + 2)),
    ]
    for row in rows:
        cells: list[Any] = [row["model"], f"{row['clients']} x {row['batch']}", f"{row['plain_ms']:.2f}"]
        for how in BACKENDS:
            found, peak = row[how], row[f"{how}_peak"]
            over = f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
            cells += [f"{row[f'{how}_ms']:.2f}", over, "-" if peak is None else f"{peak:.1f}"]
        lines.append(_line([*cells, row["stack"]]))
    return "\n".join(lines)


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
