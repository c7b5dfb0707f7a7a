"""Attention with dropout where torch would take a fused kernel: the plain one computes it, with draws by address.

There is no such device here, so the CPU is said to be one. Its own attention with dropout is the plain kernel's, and so
says what ours must give to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from cutlayer.core import attention
from cutlayer.core.randomness import OwnRandomness, StackedRandomness

X = torch.randn(3, 2, 4, 5, 6, generator=torch.Generator().manual_seed(0))  # clients, rows, heads, tokens, width
WHOLE = torch.ones(5, 5, dtype=torch.bool)
HEADS = nn.MultiheadAttention(6, 2, dropout=0.4, batch_first=True)


def attend(x: Tensor, *more: Any, **how: Any) -> Tensor:
    return functional.scaled_dot_product_attention(x, 2 * x, x + 1, *more, **how)


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: attend(x, dropout_p=0.3),
    "by place": lambda x: attend(x, None, 0.3, True),
    "causal": lambda x: attend(x, dropout_p=0.3, is_causal=True, scale=0.7),
    "mask": lambda x: attend(x, WHOLE.tril(1), 0.3),
    "all masked": lambda x: attend(x, WHOLE.tril(-1), 0.3),
    "added mask": lambda x: attend(x, attn_mask=WHOLE.tril(1).float(), dropout_p=0.3),
    "fewer keys": lambda x: functional.scaled_dot_product_attention(
        x, x[..., :2, :, :], x[..., 2:, :, :], dropout_p=0.3, enable_gqa=True
    ),
    "heads": lambda x: HEADS(x[:, 0], x[:, 1], x[:, 2], need_weights=False)[0],
}


class Seen(TorchFunctionMode):
    """Notes the functions of torch that are called inside."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "fuses", lambda device: True)
    monkeypatch.setattr("cutlayer.core.randomness.fused_somewhere", lambda: True)


def alone(call: Callable[[Tensor], Tensor], numbers: tuple[int, ...] = (4, 1, 9)) -> list[Tensor]:
    """What each client computes by itself: its output, and the gradient of its input."""
    found = []
    for x, number in zip(X, numbers, strict=True):
        leaf = x.clone().requires_grad_()
        with OwnRandomness(number) as drawn:
            out = call(leaf)
        assert drawn.used
        found += [out.detach(), *torch.autograd.grad(out.square().sum(), leaf)]
    return found


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_plain_kernel_computes_what_torchs_attention_does(
    call: Callable[[Tensor], Tensor], request: pytest.FixtureRequest
) -> None:
    expected = alone(call)
    request.getfixturevalue("gpu")
    with Seen() as seen:
        found = alone(call)
    assert "_scaled_dot_product_attention_math" in seen.names and attention.ATTENTION.__name__ not in seen.names
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_clients_of_a_stack_draw_what_each_draws_alone(call: Callable[[Tensor], Tensor]) -> None:
    leaf = X.clone().requires_grad_()
    with Seen() as seen, StackedRandomness([4, 1, 9]):
        out = vmap(call, randomness="different")(leaf)
    (grad,) = torch.autograd.grad(out.square().sum(), leaf)
    assert attention.ATTENTION.__name__ not in seen.names
    expected = alone(call)
    torch.testing.assert_close(out.detach(), torch.stack(expected[::2]), equal_nan=True)
    torch.testing.assert_close(grad, torch.stack(expected[1::2]), equal_nan=True)


@pytest.mark.usefixtures("gpu")
def test_attention_that_draws_nothing_stays_torchs() -> None:
    with Seen() as seen, OwnRandomness() as drawn:
        attend(X[0])
        HEADS.eval()(X[0, :, 0], X[0, :, 1], X[0, :, 2], need_weights=False)
        HEADS.train()
    assert not drawn.used and "_scaled_dot_product_attention_math" not in seen.names


def test_on_a_machine_without_a_gpu_nothing_is_looked_at() -> None:
    with OwnRandomness(), Seen() as inner:
        attend(X[0], dropout_p=0.3)
    assert attention.ATTENTION.__name__ in inner.names
    assert torch.accelerator.is_available() or not attention.fused_somewhere()
