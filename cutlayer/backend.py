"""How clients are simulated: one at a time (`loop`), or those of a step in one graph (`stacked`), on the same state.

`auto` follows a fixed rule, never a timing, so that a run is the same wherever it is repeated.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch
from torch import nn

from cutlayer.cut import blocks_of
from cutlayer.errors import expect, is_whole, unknown
from cutlayer.flat import Vectors, half
from cutlayer.macs import Shape
from cutlayer.nested import Inputs, each
from cutlayer.rng import callers_randomness
from cutlayer.stack import SIZE, unstackable
from cutlayer.workers import Workers

BACKENDS = ("auto", "loop", "stacked")
# Measured with `cutlayer bench` on two CPU cores: a step this small costs more in calls than in arithmetic.
SMALL_MODEL = 200_000  # parameters
SMALL_STEP = 40_000_000  # MACs of a batch, forward
GPU_STACK = 256


@dataclass(frozen=True)
class Backend:
    """The choice, and why."""

    name: str = "loop"
    why: str = "as asked"
    front: str | None = None  # why the client half cannot be stacked
    back: str | None = None  # and the server half
    size: int = 1  # clients in one graph
    workers: Workers = field(default_factory=Workers)

    @property
    def words(self) -> str:
        """For people."""
        threads = "1 thread" if self.workers.n == 1 else f"{self.workers.n} threads"
        parts = [f"{self.name} ({self.why}), {threads}"]
        for side, reason in (("client", self.front), ("server", self.back)):
            if self.name == "stacked" and reason is not None:
                parts.append(f"the {side} half is not stacked: {reason}")
        return "; ".join(parts)


def choose(
    asked: str,
    threads: int,
    model: nn.Module,
    W: Vectors,
    cuts: tuple[int, int],
    shape: Shape,
    x: Inputs,
    batch_size: int,
    together: bool,
    device: torch.device,
) -> Backend:
    """The backend for a model and its batches; `together`: whether the scheme's clients step side by side."""
    if asked not in BACKENDS:
        raise unknown("backend", asked, BACKENDS)
    expect(is_whole(threads) and threads >= 1, "threads", threads, "a whole number, at least 1")
    n = 1 if device.type == "cuda" else threads
    why = "as asked"
    small = len(W.w) <= SMALL_MODEL and batch_size * sum(shape.macs) <= SMALL_STEP
    if asked == "auto" and not (together and (small or device.type == "cuda")):
        asked, why = "loop", "the model is not small"
    if not together:
        why = "clients step one after another"
    if asked == "loop" or not together:
        return Backend("loop", why, workers=Workers(n if n == 1 or not _draws(model, x, device) else 1))
    front, back = _reasons(model, W, cuts, x, device)
    size = GPU_STACK if device.type == "cuda" else SIZE
    random = "it draws random numbers in its forward" in (front, back)
    if asked == "auto" and (front or back):
        return Backend("loop", f"not stackable: {front or back}", workers=Workers(1 if random else n))
    why = "as asked" if asked == "stacked" else "the model is small" if small else "on a GPU"
    if front is not None and back is not None:
        return Backend("loop", f"not stackable: {front}", front, back, workers=Workers(1 if random else n))
    return Backend("stacked", why, front, back, size, Workers(1 if random else n))


def cores() -> int:
    """The threads torch would use: OMP_NUM_THREADS, or the cores this process may run on."""
    return max(1, min(torch.get_num_threads(), len(os.sched_getaffinity(0))))


def _draws(model: nn.Module, x: Inputs, device: torch.device) -> bool:
    """Whether a forward pass in training draws random numbers: such a model runs in one thread."""
    whole = half(model, 0, len(blocks_of(model)), device)
    with callers_randomness(), torch.no_grad():
        before = torch.random.get_rng_state()
        whole(each(x, torch.clone), whole.views(whole.read()))
        return not torch.equal(before, torch.random.get_rng_state())


def _reasons(
    model: nn.Module, W: Vectors, cuts: tuple[int, int], x: Inputs, device: torch.device
) -> tuple[str | None, str | None]:
    """Why either half cannot be stacked; with a cut that is redrawn, the whole model stands for both."""
    n = len(blocks_of(model))
    with callers_randomness(), torch.no_grad():
        if cuts[0] != cuts[1]:
            reason = unstackable(half(model, 0, n, device), W, x)
            return reason, reason
        front, back = half(model, 0, cuts[0] + 1, device), half(model, cuts[0] + 1, n, device)
        W_c, W_s = W.split(front.sizes)
        a = front(each(x, torch.clone), front.views(W_c.clone()))
        return unstackable(front, W_c, x), unstackable(back, W_s, a)
