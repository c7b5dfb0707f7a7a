"""The options of `train` as one value, and the parts that they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from cutlayer.core.autocast import Autocast, check_autocast
from cutlayer.core.devices import chosen
from cutlayer.engine.metrics import Metric
from cutlayer.engine.resident import ON_DEVICE, OnDevice
from cutlayer.engine.validate import PROTOCOLS, Parts, brought, refuse_inside
from cutlayer.errors import expect, is_number, is_whole, unknown
from cutlayer.nn.cut import Cut
from cutlayer.optim.local import Clip, Local, combined
from cutlayer.optim.lr_schedule import LRSchedule, as_lr_schedule
from cutlayer.optim.optimizer import Optimizer
from cutlayer.optim.sgd import SGD
from cutlayer.optim.update import FedAvg, Update
from cutlayer.registry import LOCALS, LR_SCHEDULES, OPTIMIZERS, SCHEMES, UPDATES, build
from cutlayer.schemes.base import Scheme
from cutlayer.simulation.clock import Clock
from cutlayer.simulation.devices import Device

OPTIMIZER, CLOCK = SGD(lr=0.05, momentum=0.9, weight_decay=5e-4, decay=1.0), Clock()


@dataclass(frozen=True)
class Options:
    """Everything that `train` takes besides model, clients and test data.

    cut             the client's last block, by number or name, or (lo, hi): redrawn every round
    scheme          "fedavg", "sflv1", "sflv2", "smofi", "mergesfl", "psl", "sglr", "ssl", "cyclepsl", "cyclesfl",
                    "cyclesglr", "cyclessl", or an object such as SMoFi(alpha=-0.1)
    local           None, FedProx(mu=0.01), FedNAR(max_norm=10, norm="joint"), or both in a tuple
    clip            the largest norm of a gradient, on each half, before weight decay and momentum; Clip(1.0, "joint"):
                    over both halves of a client together
    update          None (plain averaging), FedAvgM(beta=0.3), SlowMo(lr=1.0, beta=0.6) or FedNAG()
    optimizer       SGD, NAG, Adam, AdamW or Lion; `server_optimizer` the same unless given
    lr_schedule     a factor on both learning rates: Cosine(rounds=100, warmup=5), Warmup(rounds=5, steps=10), or a
                    function of the round (from 1), or of the round and the client's step in it (from 0)
    rounds, participation, batch_size, local_epochs, local_steps
                    participation: a rate (float) or a number of clients (int); local_steps overrides local_epochs
    accumulate      batches per optimizer step: the step's gradient is that of the mean loss over all of them, computed
                    one batch at a time. T_j, local_steps, momentum, fusion and rates count optimizer steps
    protocol        "smofi": epochs, optimizer memory empty at the start of every round; "cyclesl": one batch (or
                    local_steps) per client and round, memory and the place in the data kept between rounds
    last_batch      "drop" or "keep" the incomplete batch; small_client: "skip" or "one_batch" (None: skipped, but with
                    local_steps in the smofi protocol one batch of all its samples)
    labels          "send": with the smashed data; "stay": the last block is the client's too, and labels and loss never
                    leave it (the U-shape; not with the Cycle schemes, which train the server on them)
    noise           Gaussian noise on the smashed data, its norm relative to theirs
    calibrate       tau: the server adds tau*log(label frequencies of the client) to the logits of its batches
    profile         the name of a profile such as "lte", or one Device(seconds, kbps) per client: for the simulated
                    clock, and for schemes that regulate batch sizes by them; None: all alike
    clock           Clock(kappa=100, sync=False, sequential="strict"): how simulated seconds are counted
    metric          a figure of your own: Round.metric. A function of all outputs and all labels of the test; or a class
                    (or object) with update(outputs, labels) and compute(), which sees them batch by batch
    kept_memory     megabytes of what clients keep that stay in memory; the rest goes to disk (None: all in memory)
    memory_limit    MiB for a round's weights, gradients and activations, and for a test: stacks are made smaller first,
                    or clients train in groups where the scheme allows it, and fewer threads compute; what still cannot
                    fit is refused before training (None: no limit)
    autocast        "bfloat16": forward passes in that type where torch says so; weights, gradients and tests stay.
                    float16 is refused: it needs scaled losses, since small gradients are 0 in it
    compile         compile the halves by `torch.compile` in the first steps, for more speed later; not for models that
                    draw random numbers. Needs a C++ compiler; the result is equal up to rounding
    ranks           over the processes of torch.distributed: "ordered" (the bits of one process) or "fast"
    target          stop once the test accuracy is at least this
    progress        show how far it is: a bar on a terminal or in a notebook, a line now and then in a log
    detail          look inside: `Round.detail` has a row for each selected client (steps, loss, drift of its halves,
                    cosine of its momentum with the fused one, fault). With `out`, it is written to detail.jsonl, and
                    `cl.open(out).detail()` reads it. It changes nothing that is computed
    backend         "loop": each client by itself; "stacked": those of a step in one graph, for small models, and on a
                    GPU; "auto": by a fixed rule; threads: clients side by side (None: one per core; on a GPU it is 1).
                    Neither changes what is computed
    torch_threads   threads inside one operation of torch, for schemes with one client or one server at a time;
                    `threads` is 1 then. It may change the last bits, but they are the same on any machine. On a GPU it
                    is 1
    stack           clients in one graph, where they are stacked (None: ten on a CPU; on a GPU as many as its free
                    memory allows, chosen once: `out` remembers it)
    data_on_device  "auto": rows are kept on the GPU if they take at most a quarter of its free memory; "yes", "no"
    seed, shuffle, device, loss, evaluate_every
    """

    cut: Cut = 0
    scheme: str | Scheme = "smofi"
    local: str | Local | Sequence[str | Local] | None = None
    clip: float | Clip | None = None
    update: str | Update | None = None
    optimizer: str | Optimizer = OPTIMIZER
    server_optimizer: str | Optimizer | None = None
    lr_schedule: str | LRSchedule | Callable[..., float] | None = None
    rounds: int = 10
    participation: float | int = 1.0
    batch_size: int = 32
    accumulate: int = 1
    local_epochs: int = 5
    local_steps: int | None = None
    protocol: str = "smofi"
    last_batch: Literal["drop", "keep"] = "drop"
    small_client: Literal["skip", "one_batch"] | None = None
    labels: str = "send"
    noise: float = 0.0
    calibrate: float = 0.0
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    metric: Metric | None = None
    profile: str | Sequence[Device | tuple[float, float]] | None = None
    clock: Clock = CLOCK
    evaluate_every: int = 1
    kept_memory: float | None = 2048
    seed: int = 0
    shuffle: bool = True
    backend: str = "auto"
    stack: int | None = None
    threads: int | None = None
    torch_threads: int = 1
    ranks: Literal["ordered", "fast"] | None = None
    memory_limit: float | None = None
    autocast: Autocast | None = None
    compile: bool = False
    device: str | torch.device = "cpu"
    data_on_device: OnDevice = "auto"
    target: float | None = None
    progress: bool = False
    detail: bool = False

    @property
    def persists(self) -> bool:
        """Whether optimizer memory and positions in the data live on between rounds."""
        return self.protocol == "cyclesl"

    def check(self, test: Any) -> None:
        """Refuse values that are out of range."""
        check_autocast(self.autocast)
        whole = "a whole number, at least 1"
        expect(is_whole(self.rounds) and self.rounds >= 1, "rounds", self.rounds, whole)
        some = is_whole(self.evaluate_every) and self.evaluate_every >= 1
        expect(some, "evaluate_every", self.evaluate_every, whole)
        expect(is_whole(self.seed), "seed", self.seed, "a whole number")
        target, limit, kept = self.target, self.memory_limit, self.kept_memory
        expect(target is None or (is_number(target) and 0 < target <= 1), "target", target, "an accuracy in (0, 1]")
        expect(target is None or test is not None, "target", target, "a test set to reach it on")
        for name in ("noise", "calibrate"):
            value = getattr(self, name)
            expect(is_number(value) and value >= 0, name, value, "a finite number, at least 0")
        expect(limit is None or (is_number(limit) and limit > 0), "memory_limit", limit, "MiB above 0, or None")
        some = kept is None or (is_number(kept) and kept >= 0)
        expect(some, "kept_memory", kept, "megabytes, at least 0, or None")
        inside = self.torch_threads
        expect(is_whole(inside) and inside >= 1, "torch_threads", inside, whole)
        expect(inside == 1 or self.threads in (None, 1), "threads", self.threads, "1 or None, beside torch_threads")
        if inside > 1:
            refuse_inside(inside, chosen(self.device))
        stack = self.stack
        expect(stack is None or (is_whole(stack) and stack >= 1), "stack", stack, "a whole number, at least 1, or None")
        if self.data_on_device not in ON_DEVICE:
            raise unknown("data_on_device", self.data_on_device, ON_DEVICE)
        if self.protocol not in PROTOCOLS:
            raise unknown("protocol", self.protocol, PROTOCOLS)

    def parts(self) -> Parts:
        """Build and check the parts, given by name or as objects; an update may bring optimizers of its own."""
        for field, given in (("scheme", self.scheme), ("optimizer", self.optimizer)):
            expect(given is not None, field, None, "a name or an object")
        scheme: Scheme = build(SCHEMES, self.scheme)
        rules = self.local if isinstance(self.local, tuple | list) else () if self.local is None else (self.local,)
        clip = [] if self.clip is None else [self.clip if isinstance(self.clip, Clip) else _clip(self.clip)]
        local = combined([*clip, *(build(LOCALS, rule) for rule in rules)])
        update: Update = FedAvg() if self.update is None else build(UPDATES, self.update)
        optimizer: Optimizer = build(OPTIMIZERS, self.optimizer)
        server: Optimizer = build(OPTIMIZERS, self.server_optimizer, "server_optimizer") or optimizer
        schedule = as_lr_schedule(build(LR_SCHEDULES, self.lr_schedule))
        return Parts(
            scheme, local, update, brought(update, optimizer), brought(update, server), schedule, self.calibrate
        )


def _clip(given: float) -> Clip:
    expect(is_number(given) and given > 0, "clip", given, "a norm above 0, or a cl.Clip")
    return Clip(float(given))
