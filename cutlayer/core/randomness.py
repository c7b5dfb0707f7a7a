"""Randomness with an address: a stream of random numbers depends only on (seed, round, client, use).

Two methods with the same seed therefore see the same partition, the same cohorts and the same batches,
and redoing a round after a crash draws the same numbers again.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Self

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cutlayer.core.attention import PlainAttention, fused_somewhere

Randomness = Literal["none", "own", "compiled"]
"""Whether a model's forward draws random numbers: "none" of them, or some, from its "own" generator. "compiled": none,
and nobody looks whether that stays so, because a context around compiled code would have it compiled again."""
UNADDRESSED = (
    "the model drew random numbers in its forward pass, although it drew none when it was first tried: "
    "this round cannot be repeated to the bit"
)
EVERYBODY = -1
"""The client of a draw that concerns the whole round (selection, order, cut)."""


def address(seed: int, round: int, client: int, use: str) -> int:
    """Return the 64-bit number of an address."""
    text = f"{seed}/{round}/{client}/{use}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def rng(seed: int, round: int, client: int, use: str) -> np.random.Generator:
    """Return a new generator at the address; the same address gives the same numbers every time."""
    return np.random.Generator(np.random.PCG64(address(seed, round, client, use)))


class OwnRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which torch draws from separate generators, seeded with `number`. The global generator, which all
    threads of a process share, is not changed. `used`: whether anything was drawn."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch loads its whole compiler, which takes as long as torch itself

    def __init__(self, number: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number, self.used = number, False
        self._generators: dict[torch.device, torch.Generator] = {}
        self._attention = PlainAttention() if fused_somewhere() else None

    def __enter__(self) -> Self:
        if self._attention is not None:
            self._attention.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *ended: Any) -> None:
        super().__exit__(*ended)  # type: ignore[no-untyped-call]
        if self._attention is not None:
            self._attention.__exit__(*ended)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, how = kwargs or {}, _how_it_draws(func)
        if how is None or kwargs.get("dropout_p") == 0 or _LENDING.mine():  # mine: a context inside this one has lent
            return func(*args, **kwargs)
        if how == "in parts":  # each of its operations is dispatched here again
            with self:
                return func.decompose(*args, **kwargs)
        device = _device(args, kwargs)
        if device.type == "meta":  # nothing is computed there
            return func(*args, **kwargs)
        if func is torch.ops.aten.native_dropout.default:
            return self._dropout(device, *args, **kwargs)
        if how == "without a generator":
            return self._lent(device, func, args, kwargs)
        self.used = True
        return self._draw(device, how, args, kwargs)

    def _draw(self, device: torch.device, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation that takes a generator with ours, unless the caller gave one. A tensor is
        filled in the order of its indices, however it lies in memory: its layout says nothing of the model's draws."""
        how = {**kwargs, "generator": kwargs.get("generator") or self._generator(device)}
        first = args[0] if args else None
        if not isinstance(first, torch.Tensor) or first.is_contiguous():
            return func(*args, **how)
        drawn = func(first.contiguous(), *args[1:], **how)
        return first.copy_(drawn) if func._schema.is_mutable else drawn

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.number)
        return self._generators[device]

    def _dropout(self, device: torch.device, input: torch.Tensor, p: float, train: bool | None) -> Any:
        """Do what torch's dropout does, step by step, because torch's takes no generator."""
        mask = torch.ones_like(input, dtype=torch.bool, memory_format=torch.contiguous_format)
        if train is False:
            return input.clone(), mask
        self.used = True
        self._draw(device, torch.ops.aten.bernoulli_.float, (mask, 1 - p), {})
        return input.mul(mask).mul_(0.0 if p == 1 else 1 / (1 - p)), mask

    def _lent(self, device: torch.device, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation that can draw only from the device's global generator, such as the dropout inside a fused
        kernel of attention: for this one call, that generator has the state of ours."""
        known = {a.name: a.default_value for a in func._schema.arguments}
        if {**known, **dict(zip(known, args, strict=False)), **kwargs}.get("dropout_p", 1) == 0:
            return func(*args, **kwargs)
        self.used, mine = True, self._generator(device)
        index = 0 if device.index is None else device.index
        here = device.type == "cpu"
        theirs = torch.default_generator if here else torch.get_device_module(device).default_generators[index]
        with _LENDING:
            before = theirs.get_state()
            theirs.set_state(mine.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                mine.set_state(theirs.get_state())
                theirs.set_state(before)


class StackedRandomness(OwnRandomness):  # type: ignore[no-untyped-call]
    """The same for several clients in one graph of torch.func.vmap, which draws for all of them at once, the clients
    first: each part is drawn by the generator of its client, in the shape that the client alone would draw."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self._each = [OwnRandomness(number) for number in numbers]

    def _draw(self, device: torch.device, func: Any, args: Any, kwargs: Any) -> Any:
        n, place = len(self._each), next((i for i, a in enumerate(args) if isinstance(a, torch.Tensor | list)), -1)
        what = [] if place < 0 else args[place]  # the tensor to fill or to imitate, or a shape
        if _first(what) != n or kwargs.get("generator") is not None:
            name = func._schema.name
            raise RuntimeError(f"{name} draws its random numbers for all clients in another way than for one")
        parts = what.unbind() if isinstance(what, torch.Tensor) else [what[1:]] * n
        drawn = [
            client._draw(device, func, (*args[:place], part, *args[place + 1 :]), kwargs)
            for client, part in zip(self._each, parts, strict=True)
        ]
        return what if func._schema.is_mutable else torch.stack(drawn)

    def _lent(self, device: torch.device, func: Any, args: Any, kwargs: Any) -> Any:
        raise RuntimeError(f"{func} draws from torch's own generator, which cannot be that of each client at once")


def _first(what: Any) -> int:
    """The first length of a tensor or a shape, -1 if it has none."""
    return int(next(iter(what.shape if isinstance(what, torch.Tensor) else what), -1))


class _Lending:
    """A lock around torch's global generators, that knows whether this thread holds it."""

    def __init__(self) -> None:
        self._lock, self._owner = threading.Lock(), 0

    def mine(self) -> bool:
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._owner = 0
        self._lock.release()


_LENDING = _Lending()


@functools.cache
def _how_it_draws(func: Any) -> Any:
    """Return how an operation draws random numbers.

    None: it does not; a function: the overload that takes a generator; "in parts": decompose it; "without a generator":
    only from the global one.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    names = {argument.name for argument in func._schema.arguments}
    if "generator" in names:
        return func
    for overload in func._overloadpacket.overloads():
        other = getattr(func._overloadpacket, overload)
        if {argument.name for argument in other._schema.arguments} == names | {"generator"}:
            return other
    return "in parts" if func._can_decompose() else "without a generator"


def _device(args: Any, kwargs: Any) -> torch.device:
    given = kwargs.get("device")
    found = next((a.device for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)), torch.device("cpu"))
    return found if given is None else torch.device(given)


class _Watched(OwnRandomness):
    """For a model that drew nothing when it was tried: warns if it draws now."""

    def __exit__(self, *ended: Any) -> None:
        super().__exit__(*ended)  # type: ignore[no-untyped-call]
        if self.used:
            warnings.warn(UNADDRESSED, stacklevel=3)


def forward_randomness(
    kind: Randomness, seed: int, round: int, client: int, step: int, side: str
) -> AbstractContextManager[object]:
    """Return the context in which a forward pass draws (dropout): one stream per (round, client, step, side). A model
    that draws nothing needs none, but is checked again in the first step of rounds 1, 2, 4, 8, ..."""
    if kind == "compiled" or (kind == "none" and (step > 0 or round & (round - 1))):
        return nullcontext()
    number = _of_forward(seed, round, client, step, side)
    return OwnRandomness(number) if kind == "own" else _Watched(number)


def stacked_randomness(
    kind: Randomness, seed: int, steps: Iterable[tuple[int, int, int]], side: str
) -> AbstractContextManager[object]:
    """Return the context for the passes of several clients in one graph, each given by its (round, client, step)."""
    return StackedRandomness([_of_forward(seed, *at, side) for at in steps]) if kind == "own" else nullcontext()


def _of_forward(seed: int, round: int, client: int, step: int, side: str) -> int:
    return address(seed, round, client, f"forward/{side}/{step}")
