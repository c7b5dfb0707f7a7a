"""Check what a user gives to `train`: data, devices, numbers. Every error names the field and what was expected."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import data

from cutlayer.core.randomness import EVERYBODY, OwnRandomness
from cutlayer.data.batch import check_labels, check_tokens
from cutlayer.data.items import Items
from cutlayer.data.schedule import BatchSchedule
from cutlayer.data.source import Source, source
from cutlayer.data.stream import Stream
from cutlayer.data.tensors import Tensors
from cutlayer.data.views import Population
from cutlayer.errors import ContractError, expect, is_number, is_whole, unknown
from cutlayer.nn.cut import checked_blocks, device_of, probe
from cutlayer.nn.language import next_token
from cutlayer.nn.macs import Shape, shape_of
from cutlayer.nn.nested import Inputs, describe, each, kind, ordered, tensors
from cutlayer.registry import PROFILES
from cutlayer.schemes.autograd import Loss
from cutlayer.simulation.devices import Device, check_devices, draw

CHUNK = 512  # rows of which the labels are counted at a time
CODES = "; whole numbers are taken for codes that an embedding looks up, so give measurements as floats"


def selected(participation: float | int, clients: int) -> int:
    """Return how many clients a round selects: a whole number as it is, a rate as max(1, ceil(rate*n))."""
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


def devices(given: Any, clients: int, seed: int, macs: int) -> Sequence[Device]:
    """Return one device per client: those given, or drawn from the named profile; None: all alike."""
    if isinstance(given, str) and given not in PROFILES:
        raise unknown("profile", given, PROFILES)
    if given is None or isinstance(given, str):
        return draw(given or "alike", clients, seed, macs)
    return check_devices(given, clients) or ()


def sources(given: Any, dtype: torch.dtype, name: str) -> Sequence[Source]:
    """Return one source of rows per client."""
    if isinstance(given, Population):
        return Population(given.rows, given.parts, given.transform, dtype, name)
    wrong = isinstance(given, Tensor | np.ndarray | Mapping | str | data.DataLoader | data.IterableDataset)
    if wrong or not isinstance(given, Iterable):
        raise ContractError(f"{name} = {type(given).__name__}: expected a list with one (x, y) or dataset per client")
    items = list(given)
    expect(len(items) > 0, name, [], "at least one")
    return [source(item, dtype, f"{name}[{j}]") for j, item in enumerate(items)]


def sizes_of(trains: Sequence[Source]) -> Sequence[int]:
    """Return |D_j| of every client, in eight bytes each."""
    return array("q", trains.sizes if isinstance(trains, Population) else [len(s) for s in trains])


def test_sources(test: Any, dtype: torch.dtype, clients: int) -> tuple[Sequence[Source], bool]:
    """Return the test sets, and whether there is one per client."""
    if test is None:
        return [], False
    pair = isinstance(test, list) and len(test) == 2 and all(isinstance(t, Tensor | np.ndarray) for t in test)
    several = isinstance(test, Population) or (isinstance(test, list) and not pair)
    tests = sources(test, dtype, "test") if several else [source(test, dtype, "test")]
    expect(any(sizes_of(tests)), "test", "no rows", "at least one row")
    for one in () if isinstance(tests, Population) else tests:
        drops = one.batches is not None and one.batches.drop_last
        expect(not drops, f"{one.name}: the DataLoader's drop_last", drops, "False: a test counts all rows")
    if several:
        expect(len(tests) == clients, "test", f"{len(tests)} of them", f"one set, or {clients}, one per client")
    return tests, several


def probed(
    model: nn.Module,
    cuts: tuple[int, int],
    tail: int,
    schedule: BatchSchedule,
    trains: Sequence[Source],
    tests: Sequence[Source],
    loss: Loss,
) -> tuple[Shape, int | None, Mapping[int, Sequence[str]]]:
    """Pass two rows of each kind through model and loss, for a clear error where they do not fit.

    Return the MACs and output sizes of the blocks, the number of classes (None: labels are not classes), and the names
    of the tensors that cross each cut, where there are several.
    """
    sizes = sorted(set(sizes_of(trains)) - {0})
    expect(len(sizes) > 0, "clients", f"{len(trains)} without a sample", "at least one client with samples")
    device = device_of(checked_blocks(model))
    smallest = min((schedule.smallest(size) for size in sizes if schedule.per_epoch(size)), default=2)
    found: int | None = None
    seen: dict[object, Shape] = {}
    everybody = [*_each_kind(trains), *_each_kind(tests)]
    for s in everybody:
        if isinstance(s, Items | Stream) and seen:
            continue  # they check their rows when they are taken
        x, y = s.take(np.zeros(2, dtype=np.int64), device)
        x = ordered(x, False)
        what = (kind(x), y.shape, y.dtype)
        if what in seen:
            continue
        try:
            out, names = probe(model, x, *cuts, tail)
            found = classes(loss, out)
            if found is not None:
                s.expect_classes(found)
                check_labels(y, found, s.name)
            elif loss is next_token and not seen:
                _expect_tokens(everybody, out)
            with OwnRandomness():
                value = loss(out, y)
            seen[what] = shape_of(model, each(x, lambda t: t[:smallest]))
        except ContractError:
            raise
        except Exception as error:  # a user's model or loss may raise anything
            shapes = f"inputs of shape {describe(x)} and {str(y.dtype)[6:]} labels of shape {tuple(y.shape[1:])}"
            whole = "" if any(t.is_floating_point() for t in tensors(x)) else CODES
            raise ContractError(f"{s.name}: model and loss do not accept {shapes}: {error}{whole}") from error
        good = isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()
        expect(good, "loss", value, "a function of (outputs, labels) that gives one number, the mean over the batch")
    if found is not None:
        for group in (trains, tests):
            for s in [group.everybody()] if isinstance(group, Population) else group:
                s.expect_classes(found)
    return next(iter(seen.values())).folded(tail), found, names


def _expect_tokens(sources: Iterable[Source], outputs: Tensor) -> None:
    """Refuse labels that the next token cannot be learnt from, where they are in memory."""
    for s in sources:
        if isinstance(s, Tensors) and outputs.ndim == 3 and s.y.ndim == 2:
            check_tokens(s.y, outputs.shape[2], s.name)


def classes(loss: Loss, outputs: Tensor) -> int | None:
    """Return the number of classes (None: labels are not classes)."""
    categorical = loss is functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    return int(outputs.shape[1]) if categorical and outputs.ndim == 2 else None


def example(trains: Sequence[Source], device: torch.device) -> tuple[Inputs, Tensor]:
    """Return four rows of one client, repeated if it has fewer."""
    first = next(iter(_each_kind(trains)))
    x, y = first.take(np.arange(4) % len(first), device)
    return ordered(x, False), y


def _each_kind(group: Sequence[Source]) -> Iterable[Source]:
    """Return the sources that have samples; only one of a population, because its rows are all of one kind."""
    if isinstance(group, Population):
        return [group[next(j for j, size in enumerate(group.sizes) if size)]]
    return [s for s in group if len(s)]


class Histograms:
    """The label distribution of each client, and of all clients together; labels are counted on first use."""

    def __init__(self, trains: Sequence[Source], classes: int | None) -> None:
        self.trains, self.classes = trains, classes
        self._counts: dict[int, NDArray[np.float64]] = {}

    def __call__(self, client: int) -> NDArray[np.float64]:
        if client == EVERYBODY:
            counts = np.stack([self._count(j) for j in range(len(self.trains))]).sum(axis=0)
        else:
            counts = self._count(client)
        shares: NDArray[np.float64] = counts / max(counts.sum(), 1)
        return shares

    def _count(self, j: int) -> NDArray[np.float64]:
        if j not in self._counts:
            expect(self.classes is not None, "select", "kl_greedy", "class labels and cross entropy")
            counts, source = np.zeros(self.classes or 0), self.trains[j]
            for start in range(0, len(source), CHUNK):
                rows = np.arange(start, min(start + CHUNK, len(source)))
                _, y = source.take(rows, torch.device("cpu"))
                counts += np.bincount(y.numpy(), minlength=len(counts))
            self._counts[j] = counts
        return self._counts[j]
