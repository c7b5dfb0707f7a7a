"""Contexts of randomness inside each other, and operations that take no generator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from cutlayer.core.randomness import OwnRandomness, StackedRandomness

Q = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
MASK = torch.ones(2, 1, 5, 5, dtype=torch.bool)


def attend(dropout: float) -> Tensor:
    return functional.scaled_dot_product_attention(Q, Q, Q, MASK, dropout)


def test_attention_without_dropout_draws_nothing() -> None:
    with OwnRandomness() as outer, OwnRandomness() as inner:
        out = attend(0.0)
    assert not outer.used and not inner.used and torch.equal(out, attend(0.0))


def test_a_context_inside_another_is_the_one_that_draws() -> None:
    with OwnRandomness(3):
        expected = [attend(0.5), torch.rand(3), functional.dropout(torch.ones(4), 0.5)]
    before = torch.random.get_rng_state()
    with OwnRandomness(9), OwnRandomness(3) as inner:
        found = [attend(0.5), torch.rand(3), functional.dropout(torch.ones(4), 0.5)]
    assert inner.used and all(map(torch.equal, found, expected))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_operation_that_must_be_lent_the_global_generator() -> None:
    """As attention on a GPU: its dropout takes no generator. Nested contexts do not wait for each other."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    before = torch.random.get_rng_state()
    with OwnRandomness(9) as outer, OwnRandomness(3) as inner:
        out, _ = flash(Q, Q, Q, attn_mask=None)
    assert not inner.used and not outer.used and torch.isfinite(out).all()
    with OwnRandomness(9) as outer, OwnRandomness(3) as inner:
        lent = inner._lent(torch.device("cpu"), torch.ops.aten.rand.default, ([3],), {})
    assert inner.used and not outer.used
    assert torch.equal(lent, torch.rand(3, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(torch.random.get_rng_state(), before)


def attention(x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3)


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: functional.dropout(x, 0.3),
    "dropout of channels": lambda x: functional.dropout2d(x, 0.3),
    "dropout with a mean": lambda x: functional.alpha_dropout(x, 0.3, training=True),
    "dropout in place": lambda x: functional.dropout(2 * x, 0.3, inplace=True),
    "dropout of another layout": lambda x: functional.dropout(x.transpose(1, 3).contiguous().transpose(1, 3), 0.3),
    "attention": attention,
    "uniform": lambda x: x + torch.rand(x.shape),
    "like another": lambda x: x + torch.randn_like(x),
    "in place": lambda x: x + torch.empty_like(x).normal_(),
    "by probabilities": lambda x: x * torch.bernoulli(torch.sigmoid(x)),
    "whole numbers": lambda x: x + torch.randint(0, 9, x.shape),
    "gumbel": functional.gumbel_softmax,
    "one after another": lambda x: functional.dropout(functional.dropout(x, 0.2) + torch.rand(x.shape[1:]), 0.3),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_clients_of_a_stack_draw_what_each_draws_alone(draw: Callable[[Tensor], Tensor]) -> None:
    x, alone = torch.linspace(-2.0, 2.0, 3 * 4 * 2 * 5 * 5).view(3, 4, 2, 5, 5), []
    for number, mine in zip((4, 1, 9), x, strict=True):
        with OwnRandomness(number) as drawn:
            alone.append(draw(mine))
        assert drawn.used
    with StackedRandomness([4, 1, 9]):
        stacked = vmap(draw, randomness="different")(x)
    assert torch.equal(stacked, torch.stack(alone))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x[torch.randperm(len(x))],
        lambda x: torch.multinomial(x.flatten(1).abs(), 2),
        lambda x: x + torch.rand(x.shape, generator=torch.Generator()),
    ],
)
def test_what_a_stack_cannot_draw_is_refused(draw: Callable[[Tensor], Tensor]) -> None:
    with StackedRandomness([4, 1]), pytest.raises(RuntimeError, match="random numbers for all clients in another way"):
        vmap(draw, randomness="different")(torch.ones(2, 3, 3))
