"""Profiles of devices: what they draw is what their tables say, one client at a time."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import numpy as np
import pytest

import cutlayer as cl
from cutlayer.core.randomness import rng
from cutlayer.registry import PROFILES
from cutlayer.simulation import devices as module
from cutlayer.simulation.clock import server_seconds
from cutlayer.simulation.devices import Device, check_devices, draw, reference_seconds

RESNET18, RESNET34 = 37_000_000, 299_000_000
TABLES: dict[str, Any] = json.loads(resources.files("cutlayer.simulation").joinpath("profiles.json").read_text("utf-8"))
NETWORKS = {
    "3g": "3G-commute-traces",
    "lte": "4G-LTE",
    "5g": "5G-NSA-Low-Band",
    "5g-sa": "5G-SA-Low-Band",
    "5g-mmwave": "5G-NSA-mmWave",
}


def test_the_median_device_of_a_model() -> None:
    assert reference_seconds(RESNET18) == 0.070 and reference_seconds(RESNET34) == pytest.approx(0.150)
    # exponent ln(150/70) / ln(299/37) = 0.762140 / 2.089526 = 0.364743; ten times the MACs: 0.070 * 10^0.364743
    assert reference_seconds(10 * RESNET18) == pytest.approx(0.070 * 2.31602, rel=1e-4)
    assert reference_seconds(0) == 0.0
    with pytest.raises(cl.ContractError, match="macs = -1"):
        reference_seconds(-1)


def test_alike_is_the_median_of_lognormal() -> None:
    assert draw("alike", 3, 5, RESNET18)[:] == [Device(0.070, 6100.0)] * 3
    drawn = draw("lognormal", 4000, 0, RESNET34)[:]
    seconds, kbps = np.median(drawn, axis=0)
    assert seconds == pytest.approx(0.150, rel=0.05) and kbps == pytest.approx(6100, rel=0.08)


def test_lognormal_draws_what_it_always_drew() -> None:
    phones = draw("lognormal", 50, 3, RESNET18)
    for j, device in enumerate(phones):
        compute, network = rng(3, 0, j, "device").standard_normal(2)
        assert device.seconds == np.clip(0.070 * np.exp(0.6 * compute), 0.015, 0.200)
        assert device.kbps == np.clip(6100 * np.exp(1.1 * network), 100, 100_000)
    larger = draw("lognormal", 50, 3, RESNET34)  # the same machines with a larger model, the clipping as well
    for one, other in zip(phones, larger, strict=True):
        assert other.seconds == pytest.approx(one.seconds * 150 / 70) and other.kbps == one.kbps


@pytest.mark.parametrize("profile", NETWORKS)
def test_many_draws_have_the_quantiles_of_the_table(profile: str) -> None:
    drawn = np.array(draw(profile, 4000, 1, RESNET18)[:])
    table, scores = TABLES["network"][NETWORKS[profile]], TABLES["compute"]["cpu_float_score"]["score"]
    up = np.array(table.get("uplink_mbps") or table["throughput_mbps"])
    down = np.array(table.get("downlink_mbps") or table["throughput_mbps"])
    kbps, seconds = 2000 / (1 / up + 1 / down), 0.070 * 1548.0 / np.array(scores)
    # of 4,000 draws, the share below a quantile of the table is right to two points in a hundred
    for percent, b, p in zip(TABLES["quantiles_percent"], kbps, seconds, strict=True):
        if 5 <= percent <= 95:
            assert np.percentile(drawn[:, 1], percent - 2) <= b <= np.percentile(drawn[:, 1], percent + 2)
            assert np.percentile(drawn[:, 0], 98 - percent) <= p <= np.percentile(drawn[:, 0], 102 - percent)
    assert drawn[:, 1].min() == pytest.approx(kbps[0]) and drawn[:, 1].max() == pytest.approx(kbps[-1])
    assert drawn[:, 0].min() == pytest.approx(seconds[-1]) and drawn[:, 0].max() == pytest.approx(seconds[0])


def test_between_quantiles_values_are_linear_in_their_logarithm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        def random(self, _: int) -> tuple[float, float]:
            return 0.5, 0.45  # halfway between the quantiles at 40 and 50 per cent

    monkeypatch.setattr(module, "rng", lambda *_: Fixed())
    seconds, kbps = draw("lte", 1, 0, RESNET18)[0]
    up, down = np.sqrt(20.02 * 31.15), np.sqrt(106.3 * 117.2)
    assert seconds == pytest.approx(0.070) and kbps == pytest.approx(2000 / (1 / up + 1 / down))
    assert 2 * 80 / kbps == pytest.approx(80 / (1000 * up) + 80 / (1000 * down))  # 80 kbit up and 80 down
    assert draw("3g", 1, 0, RESNET18)[0].kbps == pytest.approx(1000 * np.sqrt(1.076 * 1.296))


@pytest.mark.parametrize("profile", PROFILES)
def test_a_client_has_one_device_per_seed_however_many_there_are(profile: str) -> None:
    few, many = draw(profile, 20, 7, RESNET18), draw(profile, 1_000_000, 7, RESNET18)
    assert few[:] == many[:20] == [many[j] for j in range(20)] and few[-1] == many[19]
    assert few == draw(profile, 20, 7, RESNET18)
    assert profile == "alike" or few[:] != draw(profile, 20, 8, RESNET18)[:]
    assert all(device.seconds > 0 and device.kbps > 0 for device in few)


def test_a_million_clients_are_drawn_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(module, "rng", lambda *address: asked.append(address[2]) or rng(*address))
    fleet = draw("lte", 1_000_000, 0, RESNET18)
    assert len(fleet) == 1_000_000 and check_devices(fleet, 1_000_000) is fleet and asked == []
    assert fleet[999_999] == fleet[-1] and asked == [999_999, 999_999]
    server_seconds(fleet, 100.0)
    assert asked[2:] == list(range(1000))
    with pytest.raises(IndexError):
        fleet[1_000_000]


def test_bad_fleets_are_named() -> None:
    with pytest.raises(cl.ContractError, match="unknown profile 'lt': did you mean 'lte'"):
        draw("lt", 10, 0, RESNET18)
    with pytest.raises(cl.ContractError, match="clients = 0"):
        draw("lte", 0, 0, RESNET18)
    with pytest.raises(cl.ContractError, match="profile = '10 of them': expected 12"):
        check_devices(draw("lte", 10, 0, RESNET18), 12)
