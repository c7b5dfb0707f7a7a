"""Waves: who steps together, for any number of clients, epochs and steps."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.clients.waves import Order, Wave, waves

ORDERS: list[Order] = ["together", "by_epoch", "one_by_one"]
Steps = dict[int, list[int]]

clients = st.dictionaries(st.integers(0, 30), st.lists(st.integers(1, 4), min_size=1, max_size=4), max_size=6)
quick = settings(max_examples=60, deadline=None, database=None, derandomize=True)


def turns(epochs: Steps, order: Order) -> list[Wave]:
    return list(waves(order, epochs))


@quick
@given(clients)
def test_every_order_gives_each_client_its_steps_and_no_more(epochs: Steps) -> None:
    """T_j waves hold client j, none holds it twice, none is empty, and inside a wave clients keep their turn."""
    for order in ORDERS:
        found = turns(epochs, order)
        assert Counter(j for wave in found for j in wave.clients) == {j: sum(T) for j, T in epochs.items()}
        for wave in found:
            assert wave.clients
            assert list(wave.clients) == [j for j in epochs if j in wave.clients]


@quick
@given(clients)
def test_together_holds_who_is_not_done(epochs: Steps) -> None:
    """Wave k holds the clients with k < T_j: there are max T_j of them, and who has left does not return."""
    found = turns(epochs, "together")
    T = {j: sum(steps) for j, steps in epochs.items()}
    assert len(found) == max(T.values(), default=0)
    for k, wave in enumerate(found):
        assert set(wave.clients) == {j for j in T if k < T[j]}
        assert wave.epoch == 0
    assert all(set(later.clients) <= set(sooner.clients) for sooner, later in pairwise(found))


@quick
@given(clients)
def test_by_epoch_has_a_barrier(epochs: Steps) -> None:
    """No step of epoch e + 1 before the last of epoch e; inside an epoch it is `together`."""
    found = turns(epochs, "by_epoch")
    numbers = [wave.epoch for wave in found]
    assert numbers == sorted(numbers)
    for e in range(max((len(steps) for steps in epochs.values()), default=0)):
        here = {j: [steps[e]] for j, steps in epochs.items() if e < len(steps)}
        inside = [wave.clients for wave in found if wave.epoch == e]
        assert inside == [wave.clients for wave in turns(here, "together")]


@quick
@given(clients)
def test_one_by_one_is_a_client_at_a_time(epochs: Steps) -> None:
    """All the steps of one client, in the order of the turns, then the next."""
    found = [wave.clients for wave in turns(epochs, "one_by_one")]
    assert found == [(j,) for j, steps in epochs.items() for _ in range(sum(steps))]


@quick
@given(st.dictionaries(st.integers(0, 30), st.integers(1, 5), min_size=1, max_size=6))
def test_one_epoch_needs_no_barrier(steps: dict[int, int]) -> None:
    epochs = {j: [T] for j, T in steps.items()}
    assert turns(epochs, "by_epoch") == turns(epochs, "together")


def test_a_round_without_clients_has_no_waves() -> None:
    assert [turns({}, order) for order in ORDERS] == [[], [], []]
