"""Contexts of randomness inside each other, and operations that take no generator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from cutlayer.core.randomness import OwnRandomness

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
