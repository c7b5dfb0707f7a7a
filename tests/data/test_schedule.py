"""Batches: they partition the data, their number is T_j, and their randomness has an address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutlayer as cl
from cutlayer.data.schedule import BatchSchedule, Indices

quick = settings(max_examples=80, deadline=None, database=None, derandomize=True)
Last = Literal["drop", "keep"]
Small = Literal["skip", "one_batch"]

schedules = st.builds(
    BatchSchedule,
    batch_size=st.integers(1, 9),
    epochs=st.integers(1, 4),
    steps=st.none() | st.integers(1, 11),
    shuffle=st.booleans(),
    last_batch=st.sampled_from(["drop", "keep"]),
    small_client=st.sampled_from(["skip", "one_batch"]),
    seed=st.integers(0, 3),
)


def batches_in_a_pass(samples: int, size: int, last: Last, small: Small) -> int:
    """How many batches one pass gives, counted by walking through the rows."""
    whole = len([start for start in range(0, samples, size) if start + size <= samples])
    if samples and whole == 0:
        return 1 if "keep" in last or "one" in small else 0
    return whole + (1 if last == "keep" and samples % size else 0)


def passes(schedule: BatchSchedule, samples: int, round: int = 1, client: int = 0) -> Iterator[list[Indices]]:
    """The batches of a round, pass by pass."""
    batches = schedule.batches(samples, round, client)
    for steps in schedule.epochs_of(samples):
        yield [next(batches).rows for _ in range(steps)]
    assert next(batches, None) is None


@quick
@given(schedules, st.integers(0, 40))
def test_the_number_of_steps(schedule: BatchSchedule, samples: int) -> None:
    """T_j = E * batches in a pass, or `local_steps` exactly; a client without a batch takes none at all."""
    each = batches_in_a_pass(samples, schedule.batch_size, schedule.last_batch, schedule.small_client)
    T = 0 if each == 0 else schedule.steps or schedule.epochs * each
    assert schedule.per_epoch(samples) == each
    assert sum(schedule.epochs_of(samples)) == T
    assert sum(1 for _ in schedule.batches(samples, 1, 0)) == T
    if schedule.last_batch == "drop" and schedule.small_client == "skip" and schedule.steps is None:
        assert schedule.epochs * (samples // schedule.batch_size) == T  # the paper's formula


@quick
@given(schedules, st.integers(0, 40))
def test_each_pass_takes_each_row_at_most_once(schedule: BatchSchedule, samples: int) -> None:
    """A complete pass is a partition of the rows; only the incomplete batch may be missing."""
    B = schedule.batch_size
    each = schedule.per_epoch(samples)
    for batches in passes(schedule, samples):
        rows = np.concatenate(batches)
        assert len(set(rows.tolist())) == len(rows)
        assert set(rows.tolist()) <= set(range(samples))
        assert all(len(batch) == B for batch in batches[:-1])
        if len(batches) < each:
            continue  # `local_steps` ended inside this pass
        if schedule.last_batch == "keep" or samples < B:
            assert len(rows) == samples
            assert len(batches[-1]) == (samples - 1) % B + 1
        else:
            assert len(rows) == samples - samples % B


@quick
@given(schedules, st.integers(1, 40))
def test_unshuffled_passes_go_from_first_to_last(schedule: BatchSchedule, samples: int) -> None:
    for batches in passes(schedule, samples):
        if not schedule.shuffle:
            rows = np.concatenate(batches).tolist()
            assert rows == list(range(len(rows)))


@quick
@given(schedules, st.integers(1, 40), st.integers(1, 5), st.integers(0, 5))
def test_the_address_names_the_batches(schedule: BatchSchedule, samples: int, round: int, client: int) -> None:
    """Asking twice gives the same batches twice, whatever was drawn in between."""
    first = [batch.rows for batch in schedule.batches(samples, round, client)]
    list(schedule.batches(samples, round + 1, client))
    torch.rand(3), np.random.default_rng().random(3)
    again = [batch.rows for batch in schedule.batches(samples, round, client)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_rounds_clients_epochs_and_seeds_differ() -> None:
    """With 40 rows two orders are equal by chance once in 10^47."""
    schedule = BatchSchedule(batch_size=10, epochs=2, seed=0)
    orders = [np.concatenate(batches).tolist() for batches in passes(schedule, 40, 1, 0)]
    orders += [np.concatenate(next(passes(schedule, 40, *other))).tolist() for other in ((2, 0), (1, 1))]
    orders.append(np.concatenate(next(passes(BatchSchedule(batch_size=10, seed=1), 40, 1, 0))).tolist())
    assert len({tuple(order) for order in orders}) == 5


def test_batches_do_not_depend_on_the_number_of_epochs() -> None:
    """The first pass of a longer round is that of a shorter one: methods with the same seed see the same rows."""
    short, long, counted = BatchSchedule(4, epochs=1), BatchSchedule(4, epochs=3), BatchSchedule(4, steps=5)
    first = [b.rows.tolist() for b in short.batches(13, 2, 1)]
    assert [b.rows.tolist() for b in long.batches(13, 2, 1)][: len(first)] == first
    assert [b.rows.tolist() for b in counted.batches(13, 2, 1)][: len(first)] == first


@pytest.mark.parametrize(
    ("field", "name", "value"),
    [
        ("batch_size", "batch_size", 0),
        ("batch_size", "batch_size", 2.0),
        ("batch_size", "batch_size", True),
        ("batch_size", "batch_size", None),
        ("epochs", "local_epochs", 0),
        ("epochs", "local_epochs", -1),
        ("epochs", "local_epochs", None),
        ("steps", "local_steps", 0),
        ("steps", "local_steps", 1.5),
        ("last_batch", "last_batch", "pad"),
        ("small_client", "small_client", "zero"),
    ],
)
def test_bad_rules_are_refused_by_their_public_name(field: str, name: str, value: object) -> None:
    with pytest.raises(cl.ContractError, match=f"^{name} = "):
        BatchSchedule(**{field: value})  # type: ignore[arg-type]


@quick
@given(schedules, st.integers(1, 40), st.integers(0, 30), st.booleans())
def test_a_pass_has_one_address(schedule: BatchSchedule, samples: int, place: int, onward: bool) -> None:
    """It is the same as long as rows go on, and no two passes have the same."""
    schedule = replace(schedule, shuffle=False, onward=onward)
    found = []
    for round in (1, 2, 3):
        batches = schedule.batches(samples, round, 0, place)
        found += [(schedule.pass_of(samples, round, place, k), int(batch.rows[0])) for k, batch in enumerate(batches)]
        place += schedule.total(samples)
    same = [one == other for (one, _), (other, _) in pairwise(found)]
    assert same == [after > before for (_, before), (_, after) in pairwise(found)]
    assert len({where for where, _ in found}) == len(found) - sum(same)
