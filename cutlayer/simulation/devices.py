"""The clients' machines: how fast they compute and send, what a sample costs them, and profiles to draw them from.

p_j    s/sample      a forward pass of the whole model on client j's device
b_j    kbit/s        its throughput: 2*S/b_j is the time of S kilobits up and S kilobits down
O(L)   -             the front's share of the model's MACs
S(L)   kbit/sample   the activations at the cut, 32 bits an element; their gradient has the same size
u_j  = 3*p_j*O(L) + 2*S(L)/b_j      s/sample: forward and backward of the front, activations up, gradients down
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from cutlayer.core.lazy import Lazy
from cutlayer.core.randomness import rng
from cutlayer.errors import expect, is_number, is_whole, unknown
from cutlayer.nn.macs import TRAINING, Shape
from cutlayer.registry import PROFILES

BITS = 32  # of an element
RESNET18, RESNET34 = (37_000_000, 0.070), (299_000_000, 0.150)  # MACs (32x32, 64x64), median seconds (guesses)
MEDIAN_KBPS = 6100.0
WAYS = ("uplink_mbps", "downlink_mbps", "throughput_mbps")  # where a table has only one of them, it is used both ways


class Device(NamedTuple):
    """One client's machine: seconds to run the whole model forward on one sample, and kilobits a second."""

    seconds: float
    kbps: float


def share(shape: Shape, cut: int) -> float:
    """O(L)."""
    total = sum(shape.macs)
    return sum(shape.macs[: cut + 1]) / total if total else 0.0


def kilobits(elements: int) -> float:
    """The size of so many elements in kilobits; S(L) for those at the cut."""
    return elements * BITS / 1000


def seconds_per_sample(device: Device, shape: Shape, cut: int) -> float:
    """u_j."""
    return TRAINING * device.seconds * share(shape, cut) + 2 * kilobits(shape.elements[cut]) / device.kbps


def reference_seconds(macs: int) -> float:
    """The median p_j for a model of so many MACs. It is a guess: a power law through two points, also guesses."""
    expect(is_whole(macs) and macs >= 0, "macs", macs, "a whole number, at least 0")
    (less, fast), (more, slow) = RESNET18, RESNET34
    return fast * math.pow(macs / less, math.log(slow / fast) / math.log(more / less))


def _alike(_: object, reference: float) -> Device:
    return Device(reference, MEDIAN_KBPS)


def _lognormal(stream: np.random.Generator, reference: float) -> Device:
    compute, network = stream.standard_normal(2)
    factor = reference / RESNET18[1]
    seconds = np.clip(RESNET18[1] * np.exp(0.6 * compute), 0.015, 0.200)
    return Device(float(seconds) * factor, float(np.clip(MEDIAN_KBPS * np.exp(1.1 * network), 100, 100_000)))


def _measured(network: str, stream: np.random.Generator, reference: float) -> Device:
    """Draw one quantile for the processor and one for the network; the latter is used for both up and down."""
    u_compute, u_network = stream.random(2)
    scores, table = _tables()["compute"]["cpu_float_score"]["score"], _tables()["network"][network]
    mbps = [_quantile(values, u_network) for name, values in table.items() if name in WAYS]
    seconds = reference * _quantile(scores, 0.5) / _quantile(scores, u_compute)
    return Device(seconds, 1000 * len(mbps) / sum(1 / way for way in mbps))  # the harmonic mean of up and down


Draw = Callable[[np.random.Generator, float], Device]
DRAWS: dict[str, Draw] = {  # draws one device of a profile, given the median p_j of the model
    "alike": _alike,
    "lognormal": _lognormal,
    "3g": partial(_measured, "3G-commute-traces"),
    "lte": partial(_measured, "4G-LTE"),
    "5g": partial(_measured, "5G-NSA-Low-Band"),
    "5g-sa": partial(_measured, "5G-SA-Low-Band"),
    "5g-mmwave": partial(_measured, "5G-NSA-mmWave"),
}


@cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(
        resources.files("cutlayer.simulation").joinpath("profiles.json").read_text("utf-8")
    )
    return tables


def _quantile(values: Sequence[float], u: float) -> float:
    """The inverse of a distribution function: linear in the logarithm between the table's quantiles, flat outside."""
    at = np.divide(_tables()["quantiles_percent"], 100)
    return float(np.exp(np.interp(u, at, np.log(values))))


@dataclass(frozen=True)
class Fleet(Lazy[Device]):
    """The devices of all clients, each drawn when it is asked for: one draw per client and seed."""

    profile: str
    clients: int
    seed: int
    macs: int

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise unknown("profile", self.profile, PROFILES)
        expect(is_whole(self.clients) and self.clients >= 1, "clients", self.clients, "a whole number, at least 1")
        reference_seconds(self.macs)

    def __len__(self) -> int:
        return self.clients

    def at(self, j: int) -> Device:
        if self.profile == "alike":  # nothing is drawn, and a stream takes far longer to make than a device
            return self._any
        return DRAWS[self.profile](rng(self.seed, 0, j, "device"), reference_seconds(self.macs))

    @cached_property
    def _any(self) -> Device:
        return _alike(None, reference_seconds(self.macs))


def draw(profile: str, clients: int, seed: int, macs: int) -> Fleet:
    """The devices of `clients` clients, for a model of `macs` multiply-accumulates a sample."""
    return Fleet(profile, clients, seed, macs)


def check_devices(given: Any, clients: int) -> Sequence[Device] | None:
    """Check that there is one valid device per client, and return them; None if none are given."""
    if given is None:
        return None
    drawn = isinstance(given, Fleet)  # then every device is valid, and checking each would draw them all
    pairs = isinstance(given, Sequence) and (drawn or all(isinstance(d, tuple | list) and len(d) == 2 for d in given))
    expect(pairs, "profile", given, "a list with one cl.Device(seconds, kbps) per client")
    expect(len(given) == clients, "profile", f"{len(given)} of them", f"{clients}, one per client")
    if isinstance(given, Fleet):
        return given
    for j, (seconds, kbps) in enumerate(given):
        expect(is_number(seconds) and seconds > 0, f"profile[{j}].seconds", seconds, "a finite number above 0")
        expect(is_number(kbps) and kbps > 0, f"profile[{j}].kbps", kbps, "a finite number above 0")
    return [Device(*pair) for pair in given]
