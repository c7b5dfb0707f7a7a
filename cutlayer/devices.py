"""How fast a client computes and sends, and what a sample costs it (docs/algorithms.md).

u_j = 3*p_j*O(L) + 2*S(L)/b_j     seconds per sample: forward and backward of the front, activations up, gradients down
O(L)  the front's share of the model's MACs          S(L)  kilobits at the cut, 32 bits an element
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cutlayer.errors import expect, is_number
from cutlayer.macs import TRAINING, Shape
from cutlayer.rng import rng


class Device(NamedTuple):
    """One client's machine: seconds to run the whole model forward on one sample, and kilobits a second."""

    seconds: float
    kbps: float


def lognormal(clients: int, seed: int) -> list[Device]:
    """Phones and laptops as a guess: 70 ms a sample and 6.1 Mbit/s in the middle, one draw per client and seed."""
    drawn = []
    for j in range(clients):
        compute, network = rng(seed, 0, j, "device").standard_normal(2)
        seconds = np.clip(0.070 * np.exp(0.6 * compute), 0.015, 0.200)
        drawn.append(Device(float(seconds), float(np.clip(6100 * np.exp(1.1 * network), 100, 100_000))))
    return drawn


def check_devices(given: Any, clients: int) -> list[Device] | None:
    """One device per client, or None."""
    if given is None:
        return None
    pairs = isinstance(given, Sequence) and all(isinstance(d, tuple | list) and len(d) == 2 for d in given)
    expect(pairs, "devices", given, "a list with one cl.Device(seconds, kbps) per client")
    expect(len(given) == clients, "devices", f"{len(given)} of them", f"{clients}, one per client")
    for j, (seconds, kbps) in enumerate(given):
        expect(is_number(seconds) and seconds > 0, f"devices[{j}].seconds", seconds, "a finite number above 0")
        expect(is_number(kbps) and kbps > 0, f"devices[{j}].kbps", kbps, "a finite number above 0")
    return [Device(*pair) for pair in given]


def seconds_per_sample(device: Device, shape: Shape, cut: int) -> float:
    """u_j."""
    total = sum(shape.macs)
    share = sum(shape.macs[: cut + 1]) / total if total else 0.0
    kilobits = shape.elements[cut] * 32 / 1000
    return TRAINING * device.seconds * share + 2 * kilobits / device.kbps
