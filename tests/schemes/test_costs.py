"""What schemes cost the server, as measured, is what the list of schemes says they cost."""

from __future__ import annotations

import json

import pytest

from cutlayer.cli.main import main
from cutlayer.optim.adam import Adam
from cutlayer.optim.sgd import SGD
from cutlayer.registry import SCHEMES
from cutlayer.schemes import Aligned
from cutlayer.schemes.costs import measure

CLIENTS = (2, 5)
PARALLEL = ("fedavg", "sflv1", "smofi", "aligned", "psl", "sglr")
SEQUENTIAL = ("sflv2", "ssl")


@pytest.mark.parametrize("optimizer", [SGD(), Adam()], ids=["sgd", "adam"])
@pytest.mark.parametrize("name", SCHEMES)
def test_memory_is_what_the_list_says(name: str, optimizer: SGD | Adam) -> None:
    o = optimizer.moments
    said = SCHEMES[name].memory
    for m in CLIENTS:
        expected = {"m(2 + o)": m * (2 + o), "2 + o": 2 + o, "2m + 3o": 2 * m + 3 * o}[said]
        assert measure(name, m, optimizer, batch=4, width=16).memory == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEMES)
def test_compute_and_latency_by_kind(name: str) -> None:
    for m in CLIENTS:
        cost = measure(name, m, SGD(), batch=4, width=16)
        cycled = name.startswith("cycle")
        assert cost.compute == pytest.approx(m * (5 / 3 if cycled else 1))  # a frozen pass costs two thirds
        if name in PARALLEL or name == "mergesfl":
            assert cost.latency == 1
        elif name in SEQUENTIAL:
            assert cost.latency == m
        else:
            assert cost.latency == (2 * m if name == "cyclessl" else m + 1)
        assert cost.bytes == 4 * 16 * 4 * 2 + 4 * 8  # activations up, gradients down, labels


@pytest.mark.parametrize("m", CLIENTS)
def test_the_options_of_aligned(m: int) -> None:
    """A control variate is one more half for each client; cycling costs what CycleSFL costs, side by side."""
    plain, varied, cycled = (
        measure("aligned", m, SGD(), batch=4, width=16, given=given) for given in ({}, {"lam": 0.5}, {"cycle": True})
    )
    assert varied.memory == pytest.approx(plain.memory + m)
    assert (varied.compute, varied.latency, varied.bytes) == (plain.compute, plain.latency, plain.bytes)
    assert cycled.memory == plain.memory
    assert cycled.compute == pytest.approx(m * 5 / 3) and cycled.latency == 2
    said = {"lam": Aligned(lam=0.5), "none": Aligned()}
    assert said["lam"].traits.server_copies(m, 1) == varied.memory
    assert said["none"].traits.server_copies(m, 1) == plain.memory


def test_the_command_takes_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["costs", "--schemes", "aligned(cycle=true, rho=0.1)", "smofi", "--clients", "2", "--json"]) == 0
    assert [row["scheme"] for row in json.loads(capsys.readouterr().out)] == ["aligned(cycle=True, rho=0.1)", "smofi"]


def test_the_command_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["costs", "--schemes", "fedavg", "cyclesfl", "--clients", "2", "3"]
    assert main(line) == 0
    assert "server halves held" in capsys.readouterr().out
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["scheme"], row["clients"]) for row in found] == [
        (s, m) for s in ("fedavg", "cyclesfl") for m in (2, 3)
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("costs --schemes smofi(alpha", "scheme = 'smofi(alpha': expected a name, or a name with parameters"),
        ("costs --schemes smofi(alpha=1)", "scheme.alpha = 1.0: expected a finite number, at most 0"),
        ("costs --schemes fedavgg", "unknown scheme 'fedavgg': did you mean 'fedavg'?"),
        ("costs --optimizer adan", "unknown optimizer 'adan': did you mean 'adam'?"),
        ("costs --clients 0", "clients = [0]"),
        ("costs --batch-size 1", "batch_size = 1"),
    ],
)
def test_bad_input_is_named(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert said in capsys.readouterr().err
