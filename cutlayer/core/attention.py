"""Attention with dropout, on a GPU, by the kernel whose draws can be addressed.

torch's fused kernels draw inside, from the device's global generator, and for all clients of a stack at once. Its plain
kernel ("math") draws by an operation of its own, as it always does on a CPU. torch's switch between them is one for all
threads of a process; this context is for its thread alone.
"""

from __future__ import annotations

import functools
import math
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

ATTENTION, HEADS = functional.scaled_dot_product_attention, functional.multi_head_attention_forward


class PlainAttention(TorchFunctionMode):
    """A context in which attention that drops out is computed by torch's plain kernel."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        here = attention if func is ATTENTION else _heads() if func is HEADS else func
        return here(*args, **(kwargs or {}))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    *more: Any,
    **how: Any,
) -> Tensor:
    """torch's attention, by the plain kernel if it draws on a GPU."""
    if dropout_p == 0 or not fuses(query.device):
        return ATTENTION(query, key, value, attn_mask, dropout_p, *more, **how)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(query.dtype)
    out: Tensor = torch._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, *more, **how)[0]
    return out


def fuses(device: torch.device) -> bool:
    """Whether torch may compute attention with dropout by a fused kernel there."""
    return device.type != "cpu"


def fused_somewhere() -> bool:
    """Whether this machine has such a device: the context makes every call of torch a little slower."""
    return torch.accelerator.is_available()


@functools.cache
def _heads() -> FunctionType:
    """torch's multi-head attention, which calls ours: inside torch's own function this context is off. It does not ask
    whether there are other contexts, which would be handed torch's own."""
    names = {ATTENTION.__name__: attention, "has_torch_function": lambda tensors: False}
    made = FunctionType(HEADS.__code__, {**HEADS.__globals__, **names}, HEADS.__name__)
    made.__defaults__, made.__kwdefaults__ = HEADS.__defaults__, HEADS.__kwdefaults__
    return made
