"""Randomness with an address: (seed, round, client, use) names a stream, and nothing else does.

Two methods with the same seed therefore see the same partition, the same cohorts and the same batches,
and redoing a round after a crash draws the same numbers again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

EVERYBODY = -1
"""The client of a draw that concerns the whole round (selection, order, cut)."""


def address(seed: int, round: int, client: int, use: str) -> int:
    """The 64-bit number that stands for one address."""
    text = f"{seed}/{round}/{client}/{use}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def rng(seed: int, round: int, client: int, use: str) -> np.random.Generator:
    """A fresh generator at the address; asking twice gives the same numbers twice."""
    return np.random.Generator(np.random.PCG64(address(seed, round, client, use)))


def seed_forward(seed: int, round: int, client: int, step: int, side: str) -> None:
    """Seed what a model draws in its forward pass (dropout): one stream per (round, client, step, side)."""
    number = address(seed, round, client, f"forward/{side}/{step}")
    torch.default_generator.manual_seed(number)  # torch.manual_seed would cost 200 us: it looks at every back end
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)


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
