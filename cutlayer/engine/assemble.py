"""Build a run from the options of `train`; check and try every part before the first round."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from cutlayer.clients.cohort import Cohort
from cutlayer.clients.remote import RemoteClients
from cutlayer.clients.simulated import LocalCohort
from cutlayer.core.devices import chosen
from cutlayer.core.group import ONE_PROCESS, ProcessGroup
from cutlayer.core.threads import torch_threads
from cutlayer.data.schedule import BatchSchedule
from cutlayer.data.source import Source, expect_batches, source
from cutlayer.data.views import Population
from cutlayer.engine import backend, inputs, memory_limit, resident
from cutlayer.engine.backend import Backend
from cutlayer.engine.evaluate import Evaluator
from cutlayer.engine.memory_limit import Fit, Need, Sizes
from cutlayer.engine.options import Options
from cutlayer.engine.records import Global
from cutlayer.engine.resident import OnDevice
from cutlayer.engine.run import Run
from cutlayer.engine.setup import Setup
from cutlayer.engine.spill import SpillCache
from cutlayer.engine.subject import Subject
from cutlayer.engine.validate import Parts, refuse_senseless
from cutlayer.errors import ContractError, NoEffect, expect
from cutlayer.nn.blocks import as_blocks
from cutlayer.nn.copies import apart, twin
from cutlayer.nn.cut import Layout, block_names, blocks_of, cut_range, device_of, has_blocks, refuse_shared, unwrapped
from cutlayer.nn.flat import Half, Style, half
from cutlayer.nn.layered import is_layered
from cutlayer.nn.macs import Shape
from cutlayer.nn.nested import tensors
from cutlayer.optim.local import joint
from cutlayer.optim.update import buffers_of
from cutlayer.processes.cohort import OwnParts, RankCohort
from cutlayer.processes.ranks import join
from cutlayer.schemes.base import Scheme
from cutlayer.schemes.traits import Traits

MANY = 2**31 - 1  # stands for the number of clients where anybody may connect


@dataclass(frozen=True)
class Data:
    """The clients' training data, and the test data. `away`: the clients, if they are on other machines."""

    trains: Sequence[Source]
    tests: Sequence[Source]
    per_client: bool
    away: RemoteClients | None

    @property
    def sizes(self) -> Sequence[int]:
        return inputs.sizes_of(self.trains) if self.away is None else self.away.sizes

    def near(self, asked: OnDevice, device: torch.device) -> Data:
        """Return the data with its rows on the device, where they belong there."""
        trains, tests = resident.near(asked, (self.trains, self.tests), device)
        return replace(self, trains=trains, tests=tests)


@dataclass(frozen=True)
class Assembly:
    """Everything that `_setup` makes a run's setup from."""

    options: Options
    parts: Parts
    subject: Subject
    data: Data
    schedule: BatchSchedule
    shape: Shape
    how: Backend
    processes: ProcessGroup

    @property
    def traits(self) -> Traits:
        return self.parts.scheme.traits

    @property
    def spread(self) -> bool:
        """Whether every rank trains both halves of its clients."""
        return self.processes.size == 1 or self.traits.spread

    @property
    def attached(self) -> bool:
        """Whether one backward pass goes through both halves of a client."""
        return self.spread and self.traits.own_gradient and not self.subject.layout.tail

    @property
    def style(self) -> Style:
        short = None if self.options.autocast is None else torch.bfloat16
        return Style(self.how.randomness, short, self.options.compile)


def assemble(model: nn.Module, clients: Sequence[Any] | RemoteClients, test: Any, options: Options) -> Run:
    """Build the run that `rounds` returns."""
    processes = join(options.ranks)
    options.check(test)
    parts = options.parts()
    model = in_blocks(_own(model), clients)
    layout, cuts, start, whole = _cut(model, options, parts)
    schedule = _feed(options, parts)
    on = chosen(options.device)
    alone = on.type == "cpu" or options.threads in (None, 1)
    expect(alone, "threads", options.threads, f"1 or None: on {on} the device computes, and one thread feeds it")
    data = _data(clients, test, start.W.w.dtype, schedule)
    cores = backend.cores()
    with torch_threads():
        shape, classes, names = inputs.probed(model, cuts, layout.tail, schedule, data.trains, data.tests, options.loss)
        x, y = inputs.example(data.trains, on)
        subject = Subject(model, layout, cuts, options.loss, on, start.W, whole, x, y, names)
        side_by_side = cores if options.torch_threads == 1 else 1
        threads = side_by_side if options.threads is None else options.threads
        together = parts.scheme.traits.order != "one_by_one"
        how = backend.choose(options, threads, subject, shape, together)
    if options.stack is not None and how.name == "loop":
        warnings.warn(f"stack = {options.stack} has no effect here: {how.words}", NoEffect, stacklevel=4)
    _some_batch(data, schedule, parts)
    data = data.near(options.data_on_device, on)  # after all rows have been checked
    made = Assembly(options, parts, subject, data, schedule, shape, how, processes)
    return Run(model, _setup(made, classes), start, options.target, options.progress)


def _own(model: nn.Module) -> nn.Module:
    """Return a copy: the caller may change the original, even between rounds. Only the frozen weights of a model of
    transformers, which may fill the memory, are not copied."""
    whole = isinstance(model, nn.Module) and is_layered(unwrapped(model))
    return twin(model) if whole else apart(model)


def in_blocks(model: nn.Module, clients: Any) -> nn.Module:
    """Return a model in blocks. One that has none is traced with a few rows of a client."""
    if not isinstance(model, nn.Module) or has_blocks(model):
        return model
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if isinstance(clients, RemoteClients):
        clients = [clients.example]
    first = clients[0] if isinstance(clients, Population) else next(iter(clients))
    x, _ = inputs.example([source(first, dtype, "clients[0]")], device_of([model]))
    return as_blocks(model, x)


def _cut(model: nn.Module, options: Options, parts: Parts) -> tuple[Layout, tuple[int, int], Global, Half]:
    """Return the layout, the range of cuts, the first state, and all blocks."""
    layout = Layout(len(blocks_of(model)), tail=int(options.labels == "stay"))
    lo, hi = cut_range(options.cut, layout, block_names(model))
    refuse_senseless(parts, options.protocol, lo != hi, options.labels)
    refuse_shared(model, lo, hi, layout.tail)
    whole = half(model, layout.whole, chosen(options.device))
    start = Global(0, whole.read())
    expect(len(start.W.w) > 0, "model", type(model).__name__, "at least one trainable parameter")
    expect(bool(torch.isfinite(start.W.w).all()), "model", "weights with NaN or infinity", "finite weights")
    return layout, (lo, hi), start, whole


def _feed(o: Options, parts: Parts) -> BatchSchedule:
    """Return the schedule of the clients' batches."""
    steps = 1 if o.persists and o.local_steps is None else o.local_steps
    schedule = BatchSchedule(
        o.batch_size, o.local_epochs, steps, o.shuffle, o.last_batch, o.small_client, o.seed, o.persists, o.accumulate
    )
    if parts.scheme.traits.regulator is None:
        return schedule
    if o.persists and o.profile is not None:
        raise ContractError(
            f"profile: {parts.scheme} sets batch sizes by it, anew every round, and protocol 'cyclesl' goes on in the "
            "data batch by batch; expected None"
        )
    if o.small_client == "skip":
        words = f"{parts.scheme} gives a client with few samples a small batch, and skips nobody"
        warnings.warn(f"small_client = 'skip' has no effect here: {words}", NoEffect, stacklevel=4)
    return schedule


def _data(clients: Sequence[Any] | RemoteClients, test: Any, dtype: torch.dtype, schedule: BatchSchedule) -> Data:
    away = clients if isinstance(clients, RemoteClients) else None
    trains = inputs.sources([away.example] if away is not None else clients, dtype, "clients")
    for one in () if away is not None or isinstance(trains, Population) else trains:
        expect_batches(one, schedule)
    tests, per_client = inputs.test_sources(test, dtype, len(trains))
    return Data(trains, tests, per_client, away)


def _some_batch(data: Data, schedule: BatchSchedule, parts: Parts) -> None:
    """Refuse data in which no client has a full batch."""
    if data.away is None and parts.scheme.traits.regulator is None and not any(map(schedule.per_epoch, data.sizes)):
        most, times = max(data.sizes), schedule.accumulate
        what = "batch" if times == 1 else f"step of {times} batches"
        raise ContractError(
            f"batch_size = {schedule.batch_size}: the largest client has {most} samples, so none has a full {what}; "
            f"expected at most {most // times}, or small_client='one_batch'"
        )


def _cohort(a: Assembly) -> Cohort:
    """Return the cohort: clients in this process, on all ranks, or on other machines."""
    s, how, style = a.subject, a.how, a.style
    local = LocalCohort(
        a.data.trains, lambda L: s.front(L, style), how.workers, a.attached, how.size, how.front is None
    )
    if a.data.away is not None:
        _possible_elsewhere(a.parts.scheme, a.processes, bool(len(a.data.tests)))
        return a.data.away.cohort
    if a.spread or not a.processes.root:
        return local
    loss = a.options.loss if s.layout.tail else None
    own = OwnParts(a.parts.optimizer, a.parts.local, loss, s.device)
    return RankCohort(local, a.processes, own, how.size)


def _measured(a: Assembly) -> Sizes:
    """Measure what a round of the run needs in memory."""
    o, parts = a.options, a.parts
    moments, sums = (parts.optimizer.moments, parts.server_optimizer.moments), int(o.accumulate > 1)
    spare = sums, max(2 * sums, int(joint(parts.local)))  # the sums of micro-batches; the gradients before a step
    return memory_limit.measured(a.subject, o.batch_size, a.traits, moments, a.attached, spare)


def _fit(a: Assembly, measured: Callable[[], Sizes], share: int) -> Fit:
    """Fit a round into memory. `share`: clients of this process."""
    alone = a.processes.size == 1
    separate = alone and a.traits.separate and buffers_of(a.parts.update) != "average"
    free = backend.room(a.subject.device, alone) if a.options.stack is None else None
    return memory_limit.fit(measured, a.how, a.options.memory_limit, free, share, separate)


def _setup(a: Assembly, classes: int | None) -> Setup:
    o, parts, s, away = a.options, a.parts, a.subject, a.data.away
    sizes = a.data.sizes
    selected = inputs.selected(o.participation, len(sizes)) if away is None else 0  # depends on who connects
    share = -(-selected // a.processes.size) if a.spread else selected
    measured, style = functools.cache(functools.partial(_measured, a)), a.style
    fit = _fit(a, measured, share)
    same, a = fit.how.size == a.how.size, replace(a, how=fit.how)
    testers = a.how.workers.resized(fit.testers)
    evaluator = Evaluator(s, a.data.tests, a.data.per_client, o.metric, testers, a.processes, fit.rows)
    tested = len(a.data.tests) and (away is None or a.traits.carry != "keep")

    def need() -> Need:
        testing = evaluator.under_way * measured().tested if tested else 0.0
        return replace(measured().need(a.how, fit.group or share), testing=testing)

    return Setup(
        scheme=parts.scheme,
        local=parts.local,
        update=parts.update,
        cohort=_cohort(a),
        sizes=sizes,
        cuts=s.cuts,
        layout=s.layout,
        offsets=s.offsets,
        back=lambda L: s.back(L, style),
        schedule=a.schedule,
        optimizer=parts.optimizer,
        server_optimizer=parts.server_optimizer,
        lr_schedule=parts.lr_schedule,
        persists=o.persists,
        noise=o.noise,
        calibrate=o.calibrate,
        loss=o.loss,
        select=selected,
        evaluator=evaluator if tested else None,
        evaluate_every=o.evaluate_every,
        rounds=o.rounds,
        shape=a.shape,
        row=tuple(tensors(s.x)[0].shape[1:]),
        classes=classes,
        devices=inputs.devices(o.profile, len(sizes) if away is None else MANY, o.seed, sum(a.shape.macs)),
        clock=o.clock,
        histogram=inputs.Histograms(a.data.trains, classes),
        spill_cache=SpillCache(None if o.kept_memory is None else int(o.kept_memory * 2**20)),
        backend=a.how,
        stack=a.how.size if a.how.name == "stacked" and (o.stack or s.device.type != "cpu" or not same) else None,
        processes=a.processes,
        trains=a.processes if a.spread else ONE_PROCESS,
        sources=a.data.trains if away is None else (),
        group=fit.group,
        need=need,
        seed=o.seed,
        device=s.device,
        torch_threads=o.torch_threads,
        detail=o.detail,
    )


def _possible_elsewhere(scheme: Scheme, processes: ProcessGroup, tests: bool) -> None:
    """Refuse or warn of what remote clients do not allow: they send neither label counts nor fronts that they keep."""
    expect(processes.size == 1, "ranks", processes.size, "one process, where clients are on other machines")
    if scheme.traits.needs_labels == "counts":
        raise ContractError(f"scheme = {scheme}: it selects clients by their labels, which stay on their machines here")
    if scheme.traits.carry == "keep" and tests:
        warnings.warn("clients keep their fronts to themselves: there is no whole model to test here", stacklevel=6)
