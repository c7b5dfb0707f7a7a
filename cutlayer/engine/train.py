"""Training from Python: `train` for the result, `rounds` for the stream."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from cutlayer.clients.cohort import Cohort
from cutlayer.clients.remote import Elsewhere
from cutlayer.clients.simulated import LocalCohort
from cutlayer.core.group import Team
from cutlayer.core.threads import one_thread
from cutlayer.data.schedule import Feed
from cutlayer.engine import backend as backends
from cutlayer.engine import inputs
from cutlayer.engine import memory_limit as memory
from cutlayer.engine.evaluate import Evaluator
from cutlayer.engine.metrics import Metric
from cutlayer.engine.records import Global
from cutlayer.engine.run import Result, Run
from cutlayer.engine.setup import Setup
from cutlayer.engine.spill import Shelf
from cutlayer.engine.validate import PROTOCOLS, brought, refuse_senseless
from cutlayer.errors import ContractError, NoEffect, expect, is_number, is_whole, unknown
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import Cut, Layout, blocks_of, cut_range, refuse_shared
from cutlayer.nn.flat import Style, half
from cutlayer.optim.local import Local, combined, joint
from cutlayer.optim.optimizer import Optimizer
from cutlayer.optim.sgd import SGD
from cutlayer.optim.update import FedAvg, Update, buffers_of
from cutlayer.processes.cohort import RankCohort
from cutlayer.processes.ranks import Ranks, join
from cutlayer.registry import LOCALS, OPTIMIZERS, SCHEMES, UPDATES, build
from cutlayer.schemes import Scheme
from cutlayer.simulation.clock import Clock
from cutlayer.simulation.devices import Device

P = ParamSpec("P")
R = TypeVar("R")
MANY = 2**31 - 1  # clients, where anybody may come
OPTIMIZER = ("lr", "decay", "moments", "remembers", "regularise", "update")


def rounds(
    model: nn.Module,
    clients: Sequence[Any] | Elsewhere,
    test: Any = None,
    *,
    cut: Cut = 0,
    scheme: str | Scheme = "smofi",
    local: str | Local | Sequence[str | Local] | None = None,
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
    small_client: Literal["skip", "one_batch"] | None = None,
    labels: str = "send",
    noise: float = 0.0,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
    metric: Metric | None = None,
    profile: str | Sequence[Device | tuple[float, float]] | None = None,
    clock: Clock = Clock(),
    evaluate_every: int = 1,
    kept_memory: float | None = 2048,
    seed: int = 0,
    shuffle: bool = True,
    backend: str = "auto",
    threads: int | None = None,
    ranks: Literal["ordered", "fast"] | None = None,
    memory_limit: float | None = None,
    autocast: Literal["bfloat16"] | None = None,
    device: str | torch.device = "cpu",
    target: float | None = None,
    progress: bool = False,
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
    team = join(ranks)
    expect(autocast in (None, "bfloat16"), "autocast", autocast, "'bfloat16', or None (float16 needs scaled losses)")
    _check(rounds, evaluate_every, seed, target, test, noise, kept_memory, memory_limit, protocol)
    client_side, server_side, chosen, rule, updating = _parts(scheme, local, update, optimizer, server_optimizer)
    traits = chosen.traits
    model = twin(model)  # the caller may do with theirs what they like, also between rounds
    blocks = blocks_of(model)
    layout = Layout(len(blocks), tail=int(labels == "stay"))
    lo, hi = cut_range(cut, layout)
    refuse_senseless(chosen, rule, updating, client_side, server_side, protocol, lo != hi, labels)
    refuse_shared(model, lo, hi, layout.tail)
    on = inputs.device(device)
    whole = half(model, layout.whole, on)
    start = Global(0, whole.read())
    expect(len(start.W.w) > 0, "model", type(model).__name__, "at least one trainable parameter")
    expect(bool(torch.isfinite(start.W.w).all()), "model", "weights with NaN or infinity", "finite weights")
    persists = protocol == "cyclesl"
    steps = 1 if persists and local_steps is None else local_steps
    feed = Feed(batch_size, local_epochs, steps, shuffle, last_batch, small_client, seed, onward=persists)
    if persists and profile is not None and traits.regulator is not None:
        raise ContractError(
            f"profile: {chosen} sets batch sizes by it, anew every round, and protocol 'cyclesl' goes on in the data "
            "batch by batch; expected None"
        )
    if small_client == "skip" and traits.regulator is not None:
        words = f"{chosen} gives a client with few samples a small batch, and skips nobody"
        warnings.warn(f"small_client = 'skip' has no effect here: {words}", NoEffect, stacklevel=2)
    away = clients if isinstance(clients, Elsewhere) else None
    trains = inputs.sources(clients if away is None else [away.look], start.W.w.dtype, "clients")
    tests, per_client = inputs.test_sources(test, start.W.w.dtype, len(trains))
    cores = backends.cores()
    with one_thread():
        example = inputs.example(trains, on)
        shape, classes = inputs.probed(model, (lo, hi), layout.tail, feed, trains, tests, loss)
        how = backends.choose(
            backend,
            cores if threads is None else threads,
            model,
            start.W,
            (lo, hi),
            layout,
            shape,
            *example,
            loss,
            batch_size,
            traits.order != "one_by_one",
            autocast is not None,
            on,
        )
    sizes = inputs.sizes_of(trains) if away is None else away.sizes
    if away is None and not any(feed.per_epoch(size) for size in sizes) and traits.regulator is None:
        raise ContractError(
            f"batch_size = {batch_size}: the largest client has {max(sizes)} samples, so none has a full batch; "
            f"expected at most {max(sizes)}, or small_client='one_batch'"
        )
    spreads = not isinstance(team, Ranks) or traits.spread
    flows = spreads and traits.own_gradient and not layout.tail
    style = Style(how.randomness, None if autocast is None else torch.bfloat16)
    local_clients = LocalCohort(
        trains, lambda L: half(model, layout.client(L), on, style), how.workers, flows, how.size, how.front is None
    )
    selected = inputs.selected(participation, len(sizes)) if away is None else 0  # those who are there decide
    share = -(-selected // team.size) if spreads else selected
    separate = team.size == 1 and traits.separate and buffers_of(updating) != "average"
    moments = client_side.moments, server_side.moments
    flight = how.size * how.workers.n
    asks = joint(rule)
    count = functools.cache(
        lambda: memory.counter(model, layout, lo, example[0], on, batch_size, traits, moments, flight, flows, asks)
    )
    group = None if memory_limit is None else memory.group(memory_limit, share, separate, count(), how.size)
    evaluator = Evaluator(model, tests, loss, on, layout, lo, per_client, metric, how.workers, team)
    cohort: Cohort = RankCohort(local_clients, team) if isinstance(team, Ranks) and not spreads else local_clients
    if away is not None:
        _possible_elsewhere(chosen, team, bool(len(tests)))
        cohort = away.cohort
    setup = Setup(
        scheme=chosen,
        local=rule,
        update=updating,
        cohort=cohort,
        sizes=sizes,
        cuts=(lo, hi),
        layout=layout,
        offsets=whole.ends[layout.tail :],
        back=lambda L: half(model, layout.server(L), on, style),
        feed=feed,
        optimizer=client_side,
        server_optimizer=server_side,
        persists=persists,
        noise=noise,
        loss=loss,
        select=selected,
        evaluator=evaluator if len(tests) and (away is None or traits.carry != "keep") else None,
        evaluate_every=evaluate_every,
        rounds=rounds,
        shape=shape,
        devices=inputs.devices(profile, len(sizes) if away is None else MANY, seed, sum(shape.macs)),
        clock=clock,
        histogram=inputs.Histograms(trains, classes),
        shelf=Shelf(None if kept_memory is None else int(kept_memory * 2**20)),
        backend=how,
        team=team,
        group=group,
        need=lambda: count()(group or share),
        seed=seed,
    )
    return Run(model, setup, start, target, progress)


def _possible_elsewhere(scheme: Scheme, team: Team, tests: bool) -> None:
    """Clients on other machines tell neither their labels' counts nor, where they keep them, their fronts."""
    expect(team.size == 1, "ranks", team.size, "one process, where clients are on other machines")
    if scheme.traits.needs_labels == "counts":
        raise ContractError(f"scheme = {scheme}: it chooses clients by their labels, which are not known elsewhere")
    if scheme.traits.carry == "keep" and tests:
        warnings.warn("clients keep their fronts to themselves: there is no whole model to test here", stacklevel=3)


def _parts(
    scheme: str | Scheme,
    local: str | Local | Sequence[str | Local] | None,
    update: str | Update | None,
    optimizer: str | Optimizer,
    server_optimizer: str | Optimizer | None,
) -> tuple[Optimizer, Optimizer, Scheme, Local | None, Update]:
    """The parts by name or as objects, each what it should be; an update may bring its own local step with it."""
    for field, given in (("scheme", scheme), ("optimizer", optimizer)):
        expect(given is not None, field, None, "a name or an object")
    chosen: Scheme = build("scheme", SCHEMES, scheme, ("traits", "open"))
    several = local if isinstance(local, tuple | list) else () if local is None else (local,)
    rule = combined([build("local", LOCALS, one, ("pull", "max_norm", "norm")) for one in several])
    updating: Update = FedAvg() if update is None else build("update", UPDATES, update, ("__call__",))
    client_side: Optimizer = build("optimizer", OPTIMIZERS, optimizer, OPTIMIZER)
    server_side: Optimizer = build("server_optimizer", OPTIMIZERS, server_optimizer, OPTIMIZER) or client_side
    return brought(updating, client_side), brought(updating, server_side), chosen, rule, updating


def _check(
    rounds: int,
    evaluate_every: int,
    seed: int,
    target: float | None,
    test: Any,
    noise: float,
    kept_memory: float | None,
    memory_limit: float | None,
    protocol: str,
) -> None:
    """The plain numbers."""
    whole = "a whole number, at least 1"
    expect(is_whole(rounds) and rounds >= 1, "rounds", rounds, whole)
    expect(is_whole(evaluate_every) and evaluate_every >= 1, "evaluate_every", evaluate_every, whole)
    expect(is_whole(seed), "seed", seed, "a whole number")
    expect(target is None or (is_number(target) and 0 < target <= 1), "target", target, "an accuracy in (0, 1]")
    expect(target is None or test is not None, "target", target, "a test set to reach it on")
    expect(is_number(noise) and noise >= 0, "noise", noise, "a finite number, at least 0")
    some = memory_limit is None or (is_number(memory_limit) and memory_limit > 0)
    expect(some, "memory_limit", memory_limit, "MiB above 0, or None")
    limit = kept_memory is None or (is_number(kept_memory) and kept_memory >= 0)
    expect(limit, "kept_memory", kept_memory, "megabytes, at least 0, or None")
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)


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
    test            (x, y) or a dataset for the global model; a list with one per client: each client's own model on
                    its own, pooled, with the series `sampled`, `ever` and `all`; None: no evaluation
    cut             the client's last block, or (lo, hi): redrawn every round
    scheme          "fedavg", "sflv1", "sflv2", "smofi", "mergesfl", "psl", "sglr", "ssl", "cyclepsl", "cyclesfl",
                    "cyclesglr", "cyclessl", or an object such as SMoFi(alpha=-0.1)
    local           None, FedProx(mu=0.01), FedNAR(max_norm=10, norm="joint"), or both in a tuple
    update          None (plain averaging), FedAvgM(beta=0.3), SlowMo(lr=1.0, beta=0.6) or FedNAG()
    optimizer       SGD, NAG, Adam, AdamW or Lion; `server_optimizer` the same unless given
    rounds, participation, batch_size, local_epochs, local_steps
                    participation: a rate (float) or a number of clients (int); local_steps overrides local_epochs
    protocol        "smofi": epochs, optimizer memory empty at the start of every round; "cyclesl": one batch (or
                    local_steps) per client and round, memory and the place in the data kept between rounds
    last_batch      "drop" or "keep" the incomplete batch; small_client: "skip" or "one_batch" (None: skipped, but with
                    local_steps in the smofi protocol one batch of all its samples)
    labels          "send": with the smashed data; "stay": the last block is the client's too, and labels and loss never
                    leave it (the U-shape; not with the Cycle schemes, which train the server on them)
    noise           Gaussian noise on the smashed data, its norm relative to theirs
    profile         the name of a profile such as "lte", or one Device(seconds, kbps) per client: for the simulated
                    clock, and for schemes that regulate batch sizes by them; None: all alike
    clock           Clock(kappa=100, sync=False, sequential="strict"): how simulated seconds are counted
    metric          a figure of your own, from all outputs and all labels of the test: Round.metric
    kept_memory     megabytes of what clients keep that stay in memory; the rest goes to disk (None: all in memory)
    memory_limit    MiB for a round's weights, gradients and activations: clients train in groups where the scheme
                    allows it, and what cannot fit is refused before training (None: no limit)
    autocast        "bfloat16": forward passes in that type where torch says so; weights, gradients and tests stay
    ranks           over the processes of torch.distributed: "ordered" (the bits of one process) or "fast"
    target          stop once the test accuracy is at least this
    progress        show how far it is: a bar on a terminal or in a notebook, a line now and then in a log
    backend         "loop": each client by itself; "stacked": those of a step in one graph, for small models; "auto": by
                    a fixed rule; threads: clients side by side (None: one per core). Neither changes what is computed
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
    return Result(run.model, history, run.clients)
