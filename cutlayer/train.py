"""Training from Python: `train` for the result, `rounds` for the stream."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cutlayer.client import Client
from cutlayer.cohorts.local import LocalCohort
from cutlayer.cut import Cut, blocks_of, cut_range, device_of, probe, refuse_shared
from cutlayer.data.source import Items, Source, check_labels, source
from cutlayer.errors import ContractError, expect, is_number, is_whole
from cutlayer.feed import Feed
from cutlayer.flat import Half, Vectors, half
from cutlayer.macs import block_macs
from cutlayer.metrics import Evaluator
from cutlayer.optim import SGD, Optimizer
from cutlayer.parts import OPTIMIZERS, SCHEMES, UPDATES
from cutlayer.round import Engine, Global, Round, Setup, one_thread
from cutlayer.schemes import Scheme
from cutlayer.schemes.seam import Loss
from cutlayer.table import build
from cutlayer.update import FedAvg, Update

P = ParamSpec("P")
R = TypeVar("R")
OPTIMIZER = ("lr", "decay", "betas", "regularise", "absorb", "apply")


class Run(Iterator[Round]):
    """A training under way: iterate it for the rounds; `state` and `model` are those after the last one."""

    def __init__(self, model: nn.Module, setup: Setup, state: Global, target: float | None) -> None:
        self._model, self._target, self._reached = model, target, False
        self._engine = Engine(setup)
        self.setup, self.state = setup, state

    def __next__(self) -> Round:
        if self.finished:
            raise StopIteration
        self.state, record = self._engine.play(self.state)
        self._reached = self._at_target(record)
        return record

    @property
    def finished(self) -> bool:
        """Whether the last round is done, or the target reached."""
        return self._reached or self.state.n >= self.setup.rounds

    def resume(self, state: Global, history: Sequence[Round]) -> None:
        """Go on after `state`, the end of `history`, as if never interrupted."""
        self.state, self._reached = state, any(self._at_target(record) for record in history)

    def _at_target(self, record: Round) -> bool:
        return self._target is not None and record.accuracy is not None and record.accuracy >= self._target

    @property
    def model(self) -> nn.Module:
        """The joined global model, as a copy."""
        twin = copy.deepcopy(self._model)
        blocks = blocks_of(twin)
        Half(blocks, device_of(blocks)).write(self.state.W)
        return twin


@dataclass
class Result:
    """What a training ends with."""

    model: nn.Module
    history: list[Round]
    clients: list[nn.Module] = field(default_factory=list)


def rounds(
    model: nn.Module,
    clients: Sequence[Any],
    test: Any = None,
    *,
    cut: Cut = 0,
    scheme: str | Scheme = "smofi",
    local: None = None,
    update: str | Update | None = None,
    optimizer: str | Optimizer = SGD(lr=0.05, momentum=0.9, weight_decay=5e-4, decay=1.0),
    server_optimizer: str | Optimizer | None = None,
    rounds: int = 10,
    participation: float | int = 1.0,
    batch_size: int = 32,
    local_epochs: int = 5,
    local_steps: int | None = None,
    protocol: str = "smofi",
    last_batch: Literal["drop", "keep"] = "drop",
    small_client: Literal["skip", "one_batch"] = "skip",
    labels: str = "send",
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
    devices: None = None,
    evaluate_every: int = 1,
    seed: int = 0,
    shuffle: bool = True,
    backend: str = "auto",
    device: str | torch.device = "cpu",
    target: float | None = None,
) -> Run:
    """The training of `train`, as a stream of Round records.

    >>> import torch, cutlayer as cl
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> clients = [(x[:20], y[:20]), (x[20:], y[20:])]
    >>> for round in cl.rounds(model, clients, test=(x, y), cut=1, rounds=2, batch_size=10):
    ...     print(round.n, round.steps)
    1 30
    2 30
    """
    _later("local", local, None, "local rules")
    _later("protocol", protocol, "smofi", "the cyclesl protocol")
    _later("labels", labels, "send", "the U-shaped split")
    _later("devices", devices, None, "device profiles")
    _later("backend", "loop" if backend == "auto" else backend, "loop", "the stacked backend")
    expect(is_whole(rounds) and rounds >= 1, "rounds", rounds, "a whole number, at least 1")
    expect(
        is_whole(evaluate_every) and evaluate_every >= 1, "evaluate_every", evaluate_every, "a whole number, at least 1"
    )
    expect(is_whole(seed), "seed", seed, "a whole number")
    expect(target is None or (is_number(target) and 0 < target <= 1), "target", target, "an accuracy in (0, 1]")
    expect(target is None or test is not None, "target", target, "a test set to reach it on")
    chosen: Scheme = build("scheme", SCHEMES, scheme, ("wave_order", "carry", "open"))
    expect(chosen.carry == "sync", f"carry of {chosen}", chosen.carry, "'sync', all that this release has")
    model = copy.deepcopy(model)  # the caller may do with theirs what they like, also between rounds
    blocks = blocks_of(model)
    lo, hi = cut_range(cut, len(blocks))
    refuse_shared(model, lo, hi)
    if lo != hi and getattr(chosen, "persists", False):
        raise ContractError(
            f"cut = {cut!r}: {chosen} keeps the server's momentum between rounds, so its size must not change"
        )
    device = _device(device)
    whole = half(model, 0, len(blocks), device)
    start = Global(0, whole.read())
    expect(len(start.W.w) > 0, "model", type(model).__name__, "at least one trainable parameter")
    expect(bool(torch.isfinite(start.W.w).all()), "model", "weights with NaN or infinity", "finite weights")
    feed = Feed(batch_size, local_epochs, local_steps, shuffle, last_batch, small_client, seed)
    trains = _sources(clients, start.W, "clients")
    tests = _tests(test, start.W)
    with one_thread():
        macs = _probe(model, (lo, hi), feed, trains, tests, loss)
    sizes = [len(s) for s in trains]
    if not any(feed.per_epoch(size) for size in sizes):
        raise ContractError(
            f"batch_size = {batch_size}: the largest client has {max(sizes)} samples, so none has a full batch; "
            f"expected at most {max(sizes)}, or small_client='one_batch'"
        )
    client_side: Optimizer = build("optimizer", OPTIMIZERS, optimizer, OPTIMIZER)
    server_side: Optimizer | None = build("server_optimizer", OPTIMIZERS, server_optimizer, OPTIMIZER)
    setup = Setup(
        scheme=chosen,
        update=FedAvg() if update is None else build("update", UPDATES, update, ("__call__",)),
        cohort=LocalCohort([Client(j, s) for j, s in enumerate(trains)], lambda L: half(model, 0, L + 1, device)),
        sizes=sizes,
        cuts=(lo, hi),
        offsets=whole.ends,
        back=lambda L: half(model, L + 1, len(blocks), device),
        feed=feed,
        optimizer=client_side,
        server_optimizer=server_side or client_side,
        loss=loss,
        select=_selected(participation, len(sizes)),
        evaluator=Evaluator(model, tests, loss, device) if tests else None,
        evaluate_every=evaluate_every,
        rounds=rounds,
        macs=macs,
        seed=seed,
    )
    return Run(model, setup, start, target)


def _takes_what(original: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the signature of another, for people and for type checkers."""

    def dress(function: Callable[..., R]) -> Callable[P, R]:
        function.__signature__ = inspect.signature(original).replace(return_annotation=Result)  # type: ignore[attr-defined]
        return function

    return dress


@_takes_what(rounds)
def train(*arguments: Any, **named: Any) -> Result:
    """Train `model` over `clients` and give back the trained copy and the history; `model` itself is not modified.

    model           an nn.Sequential of blocks, or a module with `blocks`; every block is put in training mode
    clients         a list of (x, y) tensors, or of map-style datasets: what each client holds
    test            (x, y) or a dataset; a list with one per client is pooled; None: no evaluation
    cut             the client's last block, or (lo, hi): redrawn every round
    scheme          "fedavg", "sflv1", "sflv2", "smofi", or an object such as SMoFi(alpha=-0.1)
    update          None (plain averaging) or FedAvgM(beta=0.3)
    optimizer       SGD, NAG, Adam or AdamW; `server_optimizer` the same unless given
    rounds, participation, batch_size, local_epochs, local_steps
                    participation: a rate (float) or a number of clients (int); local_steps overrides local_epochs
    last_batch      "drop" or "keep" the incomplete batch; small_client: "skip" or "one_batch"
    target          stop once the test accuracy is at least this
    seed, shuffle, device, loss, evaluate_every

    >>> import torch, cutlayer as cl
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> clients = [(x[:20], y[:20]), (x[20:], y[20:])]
    >>> result = cl.train(model, clients, test=(x, y), cut=1, rounds=2, batch_size=10,
    ...                   scheme=cl.SMoFi(alpha=-0.1), update=cl.FedAvgM(beta=0.3))
    >>> [round.n for round in result.history]
    [1, 2]
    """
    run = rounds(*arguments, **named)
    history = list(run)
    return Result(run.model, history)


def _later(field: str, value: object, works: object, what: str) -> None:
    if value != works:
        raise ContractError(f"{field} = {value!r}: this release does not have {what} yet; expected {works!r}")


def _selected(participation: float | int, clients: int) -> int:
    """How many clients a round selects: a number as it is, a rate as max(1, ceil(rate*n))."""
    if is_whole(participation):
        expect(
            1 <= participation <= clients,
            "participation",
            participation,
            f"from 1 to {clients} clients, or a rate in (0, 1.0]",
        )
        return int(participation)
    rate = is_number(participation) and 0 < participation <= 1
    expect(rate, "participation", participation, "a rate in (0, 1.0], or a whole number of clients")
    return max(1, math.ceil(participation * clients - 1e-9))


def _device(given: str | torch.device) -> torch.device:
    try:
        torch.empty(1, device=torch.device(given)).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ContractError(f"device = {str(given)!r}: not one of this machine's: {error}") from error
    return torch.device(given)


def _sources(given: Any, like: Vectors, name: str) -> list[Source]:
    wrong = isinstance(given, Tensor | np.ndarray | Mapping | str | torch.utils.data.DataLoader)
    if wrong or not isinstance(given, Iterable):
        raise ContractError(f"{name} = {type(given).__name__}: expected a list with one (x, y) or dataset per client")
    items = list(given)
    expect(len(items) > 0, name, [], "at least one")
    return [source(item, like.w.dtype, f"{name}[{j}]") for j, item in enumerate(items)]


def _tests(test: Any, like: Vectors) -> list[Source]:
    if test is None:
        return []
    pair = isinstance(test, list) and len(test) == 2 and all(isinstance(t, Tensor | np.ndarray) for t in test)
    several = isinstance(test, list) and not pair
    tests = _sources(test, like, "test") if several else [source(test, like.w.dtype, "test")]
    expect(sum(len(t) for t in tests) > 0, "test", "no rows", "at least one row")
    return tests


def _probe(
    model: nn.Module, cuts: tuple[int, int], feed: Feed, trains: Sequence[Source], tests: Sequence[Source], loss: Loss
) -> list[int]:
    """A row or two of each kind through model and loss, for a clear word where they do not fit; MACs of each block."""
    filled = [s for s in trains if len(s)]
    expect(len(filled) > 0, "clients", [0] * len(trains), "at least one client with samples")
    device = device_of(blocks_of(model))
    smallest = min((feed.smallest(len(s)) for s in filled), default=2)
    categorical = loss is functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    classes: int | None = None
    seen: dict[object, list[int]] = {}
    for s in (*filled, *(t for t in tests if len(t))):
        if isinstance(s, Items) and seen:
            continue  # looked at row by row, when they are taken
        x, y = s.take(np.zeros(2, dtype=np.int64), device)
        kind = (x.shape, x.dtype, y.shape, y.dtype)
        if kind in seen:
            continue
        try:
            out = probe(model, x, *cuts)
            if categorical and out.ndim == 2:
                s.expect_classes(out.shape[1])
                check_labels(y, out.shape[1], s.name)
            value = loss(out, y)
            seen[kind] = block_macs(model, x[:smallest])
        except ContractError:
            raise
        except Exception as error:  # whatever a model or loss of the user's may raise
            shapes = f"inputs of shape {tuple(x.shape[1:])} and {str(y.dtype)[6:]} labels of shape {tuple(y.shape[1:])}"
            raise ContractError(f"{s.name}: model and loss do not accept {shapes}: {error}") from error
        good = isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()
        expect(good, "loss", value, "a function of (outputs, labels) that gives one number, the mean over the batch")
        classes = out.shape[1] if categorical and out.ndim == 2 else None
    if classes is not None:
        for s in (*trains, *tests):
            s.expect_classes(classes)
    return next(iter(seen.values()))
