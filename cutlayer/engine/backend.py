"""How clients are simulated: one at a time (`loop`), or several in one graph (`stacked`). Both act on the same state.

`auto` follows a fixed rule, never a timing, so that a run is the same on every machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from cutlayer.core.devices import memory
from cutlayer.core.group import ProcessGroup
from cutlayer.core.randomness import OwnRandomness, Randomness
from cutlayer.core.threads import Workers
from cutlayer.engine.options import Options
from cutlayer.engine.subject import Subject
from cutlayer.errors import ContractError, expect, is_whole, unknown
from cutlayer.nn.cut import checked_blocks
from cutlayer.nn.flat import Half, half
from cutlayer.nn.macs import Shape
from cutlayer.nn.nested import Inputs, each, parted
from cutlayer.nn.stacked import SIZE, Loss, unstackable
from cutlayer.nn.state import constant_buffers

BACKENDS = ("auto", "loop", "stacked")
# Measured with `cutlayer bench` on two CPU cores: a step this small costs more in calls than in arithmetic.
SMALL_MODEL = 200_000  # parameters
SMALL_STEP = 8_000_000  # MACs of a batch, forward
GPU_STACK = 256  # at most
GPU_SHARE, GPU_WHOLE = 0.75, 0.5  # of its free memory; of all, where ranks must choose alike


@dataclass(frozen=True)
class Backend:
    """The chosen backend, and why it was chosen."""

    name: str = "loop"
    why: str = "as asked"
    front: str | None = None  # why the client half cannot be stacked
    back: str | None = None  # why the server half cannot be stacked
    size: int = 1  # clients in one graph
    workers: Workers = field(default_factory=Workers)
    randomness: Randomness = "own"
    asked: int = 0  # threads that were asked for, where fewer fit into memory

    def with_threads(self, n: int) -> Backend:
        """The same on n threads."""
        return self if n == self.workers.n else replace(self, workers=self.workers.resized(n))

    @property
    def words(self) -> str:
        """The choice in words, for people."""
        threads = "1 thread" if self.workers.n == 1 else f"{self.workers.n} threads"
        more = f" ({self.asked} do not fit into memory_limit)" if self.asked else ""
        parts = [f"{self.name} ({self.why}), {threads}{more}"]
        for side, reason in (("client", self.front), ("server", self.back)):
            if self.name == "stacked" and reason is not None:
                parts.append(f"the {side} half is not stacked: {reason}")
        return "; ".join(parts)


def choose(options: Options, threads: int, subject: Subject, shape: Shape, together: bool) -> Backend:
    """Choose the backend for a model and its batches; `together`: whether the scheme's clients step together."""
    asked, s, device = options.backend, subject, subject.device
    if asked not in BACKENDS:
        raise unknown("backend", asked, BACKENDS)
    expect(is_whole(threads) and threads >= 1, "threads", threads, "a whole number, at least 1")
    drawn, loss_draws = _drawn(s.tried, s.x, s.y, s.loss)
    workers = Workers.on(device, threads)
    if options.compile:
        words = "False: the model or its loss draws random numbers, whose addresses compiled code does not know"
        expect(drawn == "none", "compile", True, words)
        expect(asked != "stacked", "compile", True, "False with backend 'stacked', or backend 'loop' or 'auto'")
        return Backend("loop", "compiled", workers=workers, randomness="compiled")
    small = len(s.W.w) <= SMALL_MODEL and options.batch_size * sum(shape.macs) <= SMALL_STEP
    if not together:
        return Backend("loop", "clients step one after another", workers=workers, randomness=drawn)
    if asked == "loop" or (asked == "auto" and not small and device.type == "cpu"):
        why = "as asked" if asked == "loop" else "the model is not small"
        return Backend("loop", why, workers=workers, randomness=drawn)
    front, back = _reasons(s, options.autocast is not None)
    if loss_draws:
        front = back = front or back or "the loss draws random numbers"
    if (front and back) or (asked == "auto" and (front or back)):
        return Backend("loop", f"not stackable: {front or back}", front, back, workers=workers, randomness=drawn)
    why = "as asked" if asked == "stacked" else "the model is small" if small else "on a GPU"
    size = options.stack or (SIZE if device.type == "cpu" else GPU_STACK)
    return Backend("stacked", why, front, back, size, workers, drawn)


def room(device: torch.device, alone: bool) -> float | None:
    """Return the bytes of a device that a round may fill; None: all that it asks for. `alone`: there are no other
    ranks, which might have more or less free memory and would stack otherwise."""
    there = memory(device)
    return None if there is None else GPU_SHARE * there.free if alone else GPU_WHOLE * there.total


def refuse_unlike(how: Backend, processes: ProcessGroup) -> None:
    """Refuse ranks whose stacks differ in size: their shares of a round would overlap."""
    sizes = processes.everyones(how.size)
    if len(set(sizes)) > 1:
        raise ContractError(
            f"stack: the ranks chose {', '.join(map(str, sizes))} clients in one graph; expected the same number on "
            f"all of them, as with stack={min(sizes)}"
        )


def cores() -> int:
    """Return how many threads torch would use: OMP_NUM_THREADS, or the cores this process may run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), allowed))


def randomness(model: nn.Module, x: Inputs, y: Tensor, loss: Loss, device: torch.device) -> Randomness:
    """Whether the model or the loss draws random numbers in training: "own" if so, otherwise "none"."""
    return _drawn(half(model, range(len(checked_blocks(model))), device), x, y, loss)[0]


def _drawn(whole: Half, x: Inputs, y: Tensor, loss: Loss) -> tuple[Randomness, bool]:
    """Return `randomness`, and whether the loss draws random numbers."""
    constants = [(m, name, t, t._version) for block in whole.blocks for m, name, t in constant_buffers(block)]
    views = whole.views(whole.read())
    with torch.no_grad():
        with OwnRandomness() as drawn:
            out, _ = parted(whole(each(x, torch.clone), views))
        for module, name, tensor, version in constants:
            same = getattr(module, name) is tensor and tensor._version == version
            words = "a persistent one, which is part of the model's state, or one that stays as it is"
            expect(same, "model: its forward changes the buffer", f"{type(module).__name__}.{name}", words)
        with OwnRandomness() as late:
            loss(out, y)
    return "own" if drawn.used or late.used else "none", late.used


def _reasons(s: Subject, autocast: bool) -> tuple[str | None, str | None]:
    """Return why each half cannot be stacked (None: it can). Where the cut is redrawn, try the whole model for both."""
    if s.redrawn:
        reason = unstackable(s.tried, s.W, s.x, autocast)
        return reason, reason
    front, back = s.front(s.cuts[0]), s.back(s.cuts[0])
    W_c, W_s = s.W.split(front.sizes)
    views = front.views(W_c.clone())
    with OwnRandomness(), torch.no_grad():
        a = front(each(s.x, torch.clone), views)
    return unstackable(front, W_c, s.x, autocast), unstackable(back, W_s, a, autocast)
