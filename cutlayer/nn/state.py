"""The tensors of a module: which of them are its state, and of what kind; and how to put others in their place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cutlayer.errors import ContractError, expect

SHARED = "shared_constants"  # an attribute of modules: names of buffers that several blocks share
FEW = 16  # input channels; fewer are not safe: 2 to 7 were seen to fail
ORIGINAL = ".original_module."  # PEFT keeps the old weights of modules that are trained in full
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
    if name in module._non_persistent_buffers_set or name in getattr(module, SHARED, ()):
        return None
    if tensor.is_floating_point():
        return 1
    return 2 if tensor.dtype == torch.int64 else None


def constant_buffers(block: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Yield the buffers that are in no vector."""
    for module, name, tensor in tensors_of(block):
        if not isinstance(tensor, nn.Parameter) and kind_of(module, name, tensor) is None:
            yield module, name, tensor


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


def share_buffers(blocks: Sequence[nn.Module]) -> None:
    """Make the buffers that several blocks share constants of all of them."""
    users: dict[int, list[tuple[int, nn.Module, str]]] = {}
    for index, block in enumerate(blocks):
        for module, name, tensor in tensors_of(block):
            if not isinstance(tensor, nn.Parameter):
                users.setdefault(id(tensor), []).append((index, module, name))
    for found in users.values():
        if len({index for index, _, _ in found}) > 1:
            for _, module, name in found:
                vars(module)[SHARED] = frozenset({*getattr(module, SHARED, ()), name})


def frozen_digest(model: nn.Module) -> str:
    """A sha256 over the names and values of a model's frozen parameters; "" if it has none. Wrappers of PEFT do not
    change it."""
    sha, found = hashlib.sha256(), False
    for name, weight in sorted(model.named_parameters()):
        if not weight.requires_grad and ORIGINAL not in name:
            found = True
            plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
            sha.update(f"{plain} {tuple(weight.shape)} {weight.dtype}".encode())
            values: Any = weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            sha.update(values)
    return sha.hexdigest() if found else ""
