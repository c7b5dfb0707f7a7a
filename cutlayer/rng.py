"""Randomness with an address: (seed, round, client, use) names a stream, and nothing else does.

Two methods with the same seed therefore see the same partition, the same cohorts and the same batches,
and redoing a round after a crash draws the same numbers again.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

Randomness = Literal["none", "own", "global"]
"""What a model draws in its forward: nothing; from a generator that can be given; from torch's global one."""
EVERYBODY = -1
"""The client of a draw that concerns the whole round (selection, order, cut)."""


def address(seed: int, round: int, client: int, use: str) -> int:
    """The 64-bit number that stands for one address."""
    text = f"{seed}/{round}/{client}/{use}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def rng(seed: int, round: int, client: int, use: str) -> np.random.Generator:
    """A fresh generator at the address; asking twice gives the same numbers twice."""
    return np.random.Generator(np.random.PCG64(address(seed, round, client, use)))


class Drawn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Whatever a forward pass draws on the CPU comes from a generator of its own: each thread may have one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch loads its whole compiler, which takes as long as torch itself

    def __init__(self, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(number)
        self.used = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _takes_generator(func):
            self.used, kwargs = True, {**kwargs, "generator": kwargs.get("generator") or self.generator}
        return func(*args, **kwargs)


@functools.cache
def _takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)


def forward_randomness(
    kind: Randomness, seed: int, round: int, client: int, step: int, side: str
) -> AbstractContextManager[object]:
    """Where a model's forward pass draws from (dropout): one stream per (round, client, step, side)."""
    if kind == "none":
        return nullcontext()
    number = address(seed, round, client, f"forward/{side}/{step}")
    if kind == "own":
        return Drawn(number)
    torch.default_generator.manual_seed(number)  # torch.manual_seed would cost 200 us: it looks at every back end
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
    return nullcontext()


@contextmanager
def callers_randomness() -> Iterator[None]:
    """Leave the caller's global generators (torch's, Python's, NumPy's) as they were found."""
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if cuda else []
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
