"""The loss of the next token and perplexity, against plain loops over tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import cutlayer as cl


def rows(n: int = 5, length: int = 7, words: int = 11) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(n)
    out = torch.randn(n, length, words, generator=draw, dtype=torch.float64)
    y = torch.randint(0, words, (n, length), generator=draw)
    for row in range(n):
        y[row, length - row :] = -100  # each row counts one token less than the one before
    y[0, 3] = -100
    return out, y


def by_token(out: Tensor, y: Tensor) -> list[float]:
    """-log p of every token that counts."""
    found = []
    for row in range(len(y)):
        for t in range(y.shape[1] - 1):
            if y[row, t + 1] != -100:
                p = out[row, t].double().exp() / out[row, t].double().exp().sum()
                found.append(-math.log(p[y[row, t + 1]]))
    return found


def test_next_token_is_the_mean_over_the_tokens_that_count() -> None:
    out, y = rows()
    each = by_token(out, y)
    assert len(each) == 6 - 1 + 5 + 4 + 3 + 2
    assert float(cl.next_token(out, y)) == pytest.approx(sum(each) / len(each), rel=1e-12)
    assert cl.next_token(out, y).dtype == torch.float64


def test_next_token_has_no_gradient_where_nothing_is_predicted() -> None:
    out, y = rows()
    (grad,) = torch.autograd.grad(cl.next_token(out.requires_grad_(), y), out)
    following = torch.cat([y[:, 1:], torch.full((len(y), 1), -100)], dim=1)
    assert torch.equal(grad.abs().sum(dim=2) > 0, following != -100)


def test_short_types_are_taken_to_float32() -> None:
    out, y = rows()
    short = out.bfloat16()
    loss = cl.next_token(short, y)
    assert loss.dtype == torch.float32 and torch.equal(loss, cl.next_token(short.float(), y))


@pytest.mark.parametrize("sizes", [[5], [1, 4], [2, 2, 1], [1] * 5])
def test_perplexity_counts_every_token_once(sizes: list[int]) -> None:
    out, y = rows()
    metric, means = cl.Perplexity(), []
    for some, labels in zip(out.split(sizes), y.split(sizes), strict=True):
        metric.update(some, labels)
        means.append(float(cl.next_token(some, labels)))
    each = by_token(out, y)
    assert metric.compute() == pytest.approx(math.exp(sum(each) / len(each)), rel=1e-12)
    if len(sizes) > 1:  # the mean of the batches' means is another number
        assert metric.compute() != pytest.approx(math.exp(sum(means) / len(means)), rel=1e-6)


def test_a_perplexity_is_a_number_that_a_journal_can_hold() -> None:
    metric = cl.Perplexity()
    metric.update(torch.tensor([[[0.0, 5000.0], [0.0, 0.0]]]), torch.tensor([[0, 0]]))
    assert math.isfinite(metric.compute()) and metric.compute() > 1e300


def test_labels_that_do_not_fit() -> None:
    out, y = rows()
    with pytest.raises(cl.ContractError, match=r"labels: all 30 .* are ignored \(-100\); expected at least one"):
        cl.next_token(out, torch.full_like(y, -100).index_fill(1, torch.tensor([0]), 3))
    with pytest.raises(cl.ContractError, match=r"labels: shape = \(5, 6\): expected \(5, 7\), one for each token"):
        cl.next_token(out, y[:, 1:])
    with pytest.raises(cl.ContractError, match=r"outputs: shape = \(5, 11\): expected logits \[rows, tokens, voc"):
        cl.next_token(out[:, 0], y[:, 0])
    with pytest.raises(cl.ContractError, match="labels = 'float32': expected whole numbers"):
        cl.next_token(out, y.float())
    empty = cl.Perplexity()
    empty.update(out, torch.full_like(y, -100))
    with pytest.raises(cl.ContractError, match="labels of the test: all are ignored"):
        empty.compute()
