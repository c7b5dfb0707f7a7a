"""Validation rows: taken from the training rows, never trained on, and the test rows are not looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutlayer.data.dataset import Dataset
from cutlayer.data.rows import StoredRows, none_of
from cutlayer.data.transform import Codes, Values
from cutlayer.data.views import Population, View
from cutlayer.errors import ContractError
from cutlayer.experiment import config as text
from cutlayer.experiment.population import populate

N, TESTS = 400, 60


def rows(n: int, first: int, owned: bool) -> StoredRows:
    """Row i holds the number first + i, so that it can be recognised anywhere."""
    x = np.arange(first, first + n, dtype=np.float32).reshape(n, 1)
    owners = np.arange(n) % 4 if owned else None
    return StoredRows(x, np.arange(n) % 10, owners, ("a", "b", "c", "d") if owned else ())


def held(view: View | Population) -> list[set[int]]:
    """The rows of a test set, or of each client, by the number that they hold."""
    parts = [view.index] if isinstance(view, View) else [view.parts[j] for j in range(len(view))]
    return [set(view.rows.x[part, 0].astype(int).tolist()) for part in parts]


CASES = {
    "one test set": ({"partition": "iid"}, False, True, None),
    "label skew": ({"partition": {"name": "dirichlet", "gamma": 0.3}}, False, True, None),
    "natural, one test set": ({"partition": {"name": "natural", "min_size": 1}}, True, True, None),
    "natural, no test rows": ({"partition": {"name": "natural", "min_size": 1}}, True, False, None),
    "own test rows": ({"partition": "iid", "protocol": "cyclesl"}, False, True, None),
    "natural, own test rows": (
        {"partition": {"name": "natural", "min_size": 1}, "protocol": "cyclesl"},
        *(True, True, None),
    ),
    "text": ({"partition": {"name": "natural", "min_size": 1}}, True, False, 5),
    "text, one test set": ({"partition": {"name": "natural", "min_size": 1}}, True, True, 5),
}


@pytest.mark.parametrize(("values", "owned", "tests", "gap"), CASES.values(), ids=CASES)
def test_validation_rows_come_from_the_training_rows(
    values: dict[str, Any], owned: bool, tests: bool, gap: int | None
) -> None:
    clients = {} if owned else {"clients": 6}
    train = rows(N, 0, owned)
    test = rows(TESTS, N, owned) if tests else none_of(train)
    data = Dataset(train, test, 10, Codes() if gap else Values(), Values(), gap)
    plain = text.parse({"task": "digits", **values, **clients})
    tuned = text.parse({"task": "digits", **values, **clients, "validation": 0.2})

    (was, tested), (now, judged) = populate(plain, data), populate(tuned, data)
    all_was, all_now = set.union(*held(was)), set.union(*held(now))
    all_tested, all_judged = set.union(*held(tested)), set.union(*held(judged))
    assert all_judged and not all_judged & all_now, "trained on validation rows"
    assert not all_judged & all_tested, "tested on test rows while tuning"
    assert not all_now & all_tested, "trained on test rows"
    pooled = isinstance(judged, View)
    assert type(judged) is type(tested)
    if pooled and gap is None:
        assert all_judged | all_now == set(range(N)) and len(all_judged) == N // 5
    else:
        assert all_judged | all_now <= all_was
        assert len(all_judged) <= len(all_was) // 4
    if gap and not pooled:
        for mine, theirs in zip(held(now), held(judged), strict=True):
            assert min(theirs) - max(mine) > 4 * gap, "a window of the training rows reaches into the validation rows"
    assert held(judged) == held(populate(tuned, data)[1]), "not the same rows again"
    other = populate(text.parse({**tuned.model_dump(exclude_none=True), "seed": 1}), data)
    if gap is None:
        assert held(other[1]) != held(judged)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, "all"])
def test_a_share_that_is_none(share: Any) -> None:
    with pytest.raises(ContractError, match="validation"):
        text.parse({"task": "digits", "validation": share})
