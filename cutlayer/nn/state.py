"""The tensors of a module: which of them are its state, and of what kind; and how to put others in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cutlayer.errors import ContractError, expect

FEW = 16  # input channels; fewer are not safe: 2 to 7 were seen to fail
Dtypes = tuple[torch.dtype, torch.dtype, torch.dtype]


def tensors_of(block: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Yield every parameter and buffer with the module that holds it, and its name there."""
    for module in block.modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield module, name, tensor


def kind_of(module: nn.Module, name: str, tensor: Tensor) -> int | None:
    """0: a trainable parameter, 1: a floating buffer, 2: a counter, None: a constant."""
    if is_lazy(tensor):
        raise ContractError("model: it has lazy parameters; run one batch through it first")
    if isinstance(tensor, nn.Parameter):
        return 0 if tensor.requires_grad else None
    if name in module._non_persistent_buffers_set:
        return None
    if tensor.is_floating_point():
        return 1
    return 2 if tensor.dtype == torch.int64 else None


def dtypes_of(blocks: Sequence[nn.Module]) -> Dtypes:
    """The dtypes of parameters, floating buffers and counters."""
    tensors = [(kind_of(module, name, t), t.dtype) for block in blocks for module, name, t in tensors_of(block)]
    w, b, i = ({dtype for kind, dtype in tensors if kind == this} for this in range(3))
    parameters = _one(w, torch.get_default_dtype())
    return parameters, _one(b, parameters), _one(i, torch.int64)


def _one(found: set[torch.dtype], none: torch.dtype) -> torch.dtype:
    expect(
        len(found) <= 1, "model", sorted(map(str, found)), "one dtype for all its parameters, and one for its buffers"
    )
    return found.pop() if found else none


def put(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Make a module compute with another tensor."""
    if type(module).__setattr__ is not nn.Module.__setattr__:
        setattr(module, name, tensor)  # recurrent layers keep their own list of weights
    elif name in module._parameters:
        module._parameters[name] = tensor  # type: ignore[assignment]
    else:
        module._buffers[name] = tensor


def channels_last_is_safe(blocks: Sequence[nn.Module]) -> bool:
    """Whether the blocks can use channels_last order. If not, the model keeps the plain order.

    Two of torch's channels_last kernels write past the end of their memory (seen in 2.13 on a CPU): that of a strided
    1x1 convolution of a few channels, and that of GroupNorm if its input needs no gradient.
    """

    def breaks(module: nn.Module) -> bool:
        if not isinstance(module, nn.Conv2d):
            return isinstance(module, nn.GroupNorm)
        few = module.in_channels // module.groups < FEW
        return few and max(module.kernel_size) == 1 and max(module.stride) > 1

    return not any(breaks(module) for block in blocks for module in block.modules())
