"""`cutlayer bench --device`: our rounds on an accelerator beside centralised training on it, as a block to paste."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from cutlayer.bench.cases import CASES
from cutlayer.bench.rivals import Centralised
from cutlayer.bench.sections import Row, machine, run, smaller
from cutlayer.bench.timing import interleaved, ratio
from cutlayer.core.devices import chosen, memory
from cutlayer.errors import expect

MIB = 2**20


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
        data = [(x.to(device), y.to(device)) for x, y in host]
        ours = {
            how: run(case, model=model, clients=host, backend=how, device=device, threads=1)
            for how in ("loop", "stacked")
        }
        plain = Centralised(model, data, case.batch, tuned=False, loss=case.loss)
        plays: dict[str, Callable[[], object]] = {"plain": plain, **{how: one.__next__ for how, one in ours.items()}}
        seconds = interleaved({how: _waited(play, device) for how, play in plays.items()}, repeats)
        steps = case.clients * case.steps
        row: Row = {"model": name, "clients": case.clients, "batch": case.batch}
        row |= {f"{how}_ms": 1000 * statistics.median(found) / steps for how, found in seconds.items()}
        for how in ours:
            row[how] = ratio(seconds["plain"], seconds[how])._asdict()
            row[f"{how}_peak"] = _peak(ours[how].__next__, device)
        stack = ours["stacked"].setup
        yield row | {"stack": stack.stack or f"none: {stack.backend.why}"}


def _waited(play: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Return a function that plays and waits for the device."""

    def played() -> None:
        play()
        torch.accelerator.synchronize(device)

    return played


def _peak(play: Callable[[], object], device: torch.device) -> float | None:
    """MiB at the peak of a round, if the device counts them."""
    module = torch.get_device_module(device)
    if not hasattr(module, "max_memory_allocated") or not hasattr(module, "reset_peak_memory_stats"):
        return None
    module.reset_peak_memory_stats(device)
    _waited(play, device)()
    return float(module.max_memory_allocated(device)) / MIB


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
        for how in ("loop", "stacked"):
            found, peak = row[how], row[f"{how}_peak"]
            over = f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
            cells += [f"{row[f'{how}_ms']:.2f}", over, "-" if peak is None else f"{peak:.1f}"]
        lines.append(_line([*cells, row["stack"]]))
    return "\n".join(lines)


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
