"""CycleSL: tables 1 to 6 and 8 to 11, and figures 2 to 13. (Figure 1 is a drawing, table 7 the authors' machine.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutlayer.experiment import config as text
from cutlayer.experiment.methods import LABELS
from cutlayer.experiment.presets.cyclesl import PRESETS, SCHEMES
from cutlayer.reproduce.item import Cell, Item, Target

PAPER = "cyclesl"
CIFAR = {"iid": "iid", "alpha = 1.0": "1.0", "alpha = 0.5": "0.5", "alpha = 0.1": "0.1"}
PANELS = {"FEMNIST": "cyclesl-femnist", "CelebA": "cyclesl-celeba", "Shakespeare": "cyclesl-shakespeare"}
PANELS |= {f"CIFAR-100 ({words})": f"cyclesl-cifar100-{name}" for words, name in CIFAR.items()}
TARGETS = {"FEMNIST": 0.45, "CelebA": 0.75, "Shakespeare": 0.35}
TARGETS |= {panel: 0.30 for panel in PANELS if panel.startswith("CIFAR")}
METRICS = ("loss", "accuracy", "f1", "mcc")
TESTED = (
    "Every client is tested on its own rows, and all of them count; the authors tested only the clients of each round, "
    "which is noisier."
)
FINAL = "The last round's scores, not the best round's, as in the paper."
NO_NUMBERS = "The paper's figure is a picture without numbers, so there is nothing to print beside ours."
SAME = (
    "Cut 3 here, one server epoch in table 6 and CycleSFL in table 3 are one configuration in the paper, which prints "
    "three different numbers for it: differences below 0.02 mean nothing."
)


EVERY = {"femnist": 2, "celeba": 5, "shakespeare": 10, "cifar100": 5}
"""Rounds between tests of all clients: table 4 counts from 6 rounds (FEMNIST), 29, 98 and 107 rounds on."""


def _values(preset: str, scheme: str, **more: Any) -> Mapping[str, Any]:
    base = PRESETS[preset].comparison.base
    often = {"evaluate_every": EVERY[base["task"]]}
    return text.merge(text.merge(base, {"scheme": scheme, **often}), more)


def _panel(panel: str) -> tuple[Cell, ...]:
    """Return every method on one task."""
    return tuple(Cell(panel, LABELS[scheme], _values(PANELS[panel], scheme)) for scheme in SCHEMES)


def _varied(rows: Mapping[str, Mapping[str, Any]]) -> tuple[Cell, ...]:
    """Return variants of CycleSFL on CIFAR-100, for each mixture of classes."""
    return tuple(
        Cell(words, row, text.merge(_values(f"cyclesl-cifar100-{name}", "cyclesfl"), more))
        for words, name in CIFAR.items()
        for row, more in rows.items()
    )


ALL = tuple(cell for panel in PANELS for cell in _panel(panel))
CUTS = _varied({f"cut {c}": {"cut": c - 1} for c in range(1, 7)})
EPOCHS = _varied(
    {f"{e} server epoch{'s' * (e > 1)}": {"scheme": {"name": "cyclesfl", "server_epochs": e}} for e in (1, 2, 4, 8)}
)
ROUNDS = (
    "Rounds until the accuracy over all clients is reached. They are tested in every 2nd round on FEMNIST, every 5th "
    "on CelebA and CIFAR-100, every 10th on Shakespeare; the authors looked at each round's own clients."
)


def _measured(name: str, title: str, make: str, *data: str, notes: tuple[str, ...] = ()) -> Item:
    return Item(
        PAPER, name, title, "measured", make=f"cutlayer.reproduce.measured:{make}", data=tuple(data), notes=notes
    )


ITEMS = (
    _measured(
        "table-1",
        "what a method costs the server",
        "costs",
        notes=(
            "The paper's classes, and what `cutlayer costs` measures for one scheme of each, with N clients.",
            "The paper says O(1) computation for CycleSL and for sequential SL: measured, the server's work for a step "
            "of N clients grows with N under every scheme, and CycleSL's is the largest, because it passes all "
            "features through the server twice. What is O(1) is the number of models it holds. Its latency is N + 1 "
            "passes, not O(k) with k far below N, as long as a batch of the server is as large as one of a client.",
        ),
    ),
    _measured("table-2", "the data sets", "overview", "femnist", "celeba", "shakespeare", "cifar100"),
    Item(PAPER, "table-3", "loss, accuracy, F1, MCC", "metrics", METRICS, ALL, score="final", notes=(FINAL, TESTED)),
    Item(
        PAPER,
        "table-4",
        "rounds to an accuracy",
        "table",
        ("rounds",),
        ALL,
        Target(fixed=TARGETS),
        score="final",
        notes=(ROUNDS,),
    ),
    Item(PAPER, "table-5", "the cut, CIFAR-100", "table", ("accuracy",), CUTS, score="final", notes=(FINAL, SAME)),
    Item(PAPER, "table-6", "server epochs, CIFAR-100", "table", ("accuracy",), EPOCHS, score="final", notes=(FINAL,)),
    _measured("table-8", "hyper-parameters", "settings"),
    _measured("table-9", "the CNN of FEMNIST", "leaf_cnn"),
    _measured("table-10", "the CNN of CelebA", "celeba_cnn"),
    _measured("table-11", "the LSTM of Shakespeare", "leaf_lstm"),
    Item(PAPER, "figure-2", "test loss of each task", "curves", ("loss",), ALL, notes=(TESTED, NO_NUMBERS)),
    _measured("figure-3", "samples of a client", "histograms", "femnist", "celeba", "shakespeare"),
    _measured("figure-4", "classes of a client, CIFAR-100", "mixtures", "cifar100"),
    *(
        Item(PAPER, f"figure-{5 + i}", f"test metrics, {panel}", "curves", METRICS, _panel(panel), notes=(NO_NUMBERS,))
        for i, panel in enumerate(PANELS)
    ),
    Item(PAPER, "figure-12", "test loss by cut, CIFAR-100", "curves", ("loss",), CUTS, notes=(NO_NUMBERS,)),
    Item(PAPER, "figure-13", "test loss by server epochs, CIFAR-100", "curves", ("loss",), EPOCHS, notes=(NO_NUMBERS,)),
)
