"""Distance correlation against its textbook form, and what a model's cuts give away."""

from __future__ import annotations

import math

import pytest
import torch

from cutlayer.nn.leakage import _distances, distance_correlation, leakage


def by_hand(x: list[list[float]], a: list[list[float]]) -> float:
    """Székely's sample statistic, with loops."""

    def centred(rows: list[list[float]]) -> list[list[float]]:
        n = len(rows)
        d = [[math.dist(one, other) for other in rows] for one in rows]
        row = [sum(line) / n for line in d]
        column = [sum(d[i][j] for i in range(n)) / n for j in range(n)]
        grand = sum(row) / n
        return [[d[i][j] - row[i] - column[j] + grand for j in range(n)] for i in range(n)]

    D, E = centred(x), centred(a)
    n = len(x)

    def product(P: list[list[float]], Q: list[list[float]]) -> float:
        return sum(P[i][j] * Q[i][j] for i in range(n) for j in range(n)) / n**2

    return math.sqrt(product(D, E) / math.sqrt(product(D, D) * product(E, E)))


def test_it_equals_the_textbook() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=g, dtype=torch.float64)
    a = (x @ torch.randn(3, 2, generator=g, dtype=torch.float64)).relu()
    assert distance_correlation(x, a) == pytest.approx(by_hand(x.tolist(), a.tolist()), abs=1e-9)


def test_its_ends() -> None:
    g = torch.Generator().manual_seed(1)
    x, other = (torch.randn(300, 4, generator=g, dtype=torch.float64) for _ in range(2))
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=g, dtype=torch.float64))
    assert distance_correlation(x, 3 * x @ turn + 1) == pytest.approx(1)
    assert distance_correlation(x, other) < 0.25
    assert distance_correlation(x, torch.zeros(300, 2)) == 0.0


def test_codes_count_as_symbols() -> None:
    x = torch.tensor([[0, 1], [9, 1], [0, 2]])
    hot = torch.nn.functional.one_hot(x, 10).flatten(1).double()
    assert distance_correlation(x, hot) == pytest.approx(1)


def test_a_model_leaks_less_with_every_block_that_throws_something_away() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(16, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)]
    model = torch.nn.Sequential(*layers)
    x = torch.rand(200, 1, 4, 4)
    model.train()
    found = leakage(model, x)
    assert found[0] == pytest.approx(1, abs=1e-6) and found[0] > found[1] > found[3]
    assert found[1] == found[2] and model.training  # dropout is off while it is measured


def test_codes_differ_in_so_many_places() -> None:
    codes = torch.tensor([[1, 2, 3], [1, 2, 4], [5, 6, 7]])
    expected = torch.tensor([[0, 1, 3], [1, 0, 3], [3, 3, 0]], dtype=torch.float64).sqrt()
    assert torch.equal(_distances(codes), expected)
