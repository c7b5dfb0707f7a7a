"""Items of the papers for which nothing is trained: costs, data sets, devices, hyper-parameters, models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cutlayer.core.randomness import OwnRandomness
from cutlayer.core.threads import torch_threads
from cutlayer.data.parts import divergence
from cutlayer.data.parts import histograms as class_counts
from cutlayer.experiment import config as text
from cutlayer.experiment.population import divided, load_data
from cutlayer.experiment.presets import cyclesl, smofi
from cutlayer.models import example
from cutlayer.nn.macs import shape_of
from cutlayer.registry import MODELS, OPTIMIZERS, SCHEMES
from cutlayer.report.curves import COLORS, png, tidy
from cutlayer.reproduce import printed
from cutlayer.reproduce.item import Item
from cutlayer.reproduce.runs import missing
from cutlayer.reproduce.sheet import Entry, Section, Sheet
from cutlayer.reproduce.sizes import size
from cutlayer.schemes import costs as measuring
from cutlayer.simulation.devices import draw

More = Mapping[str, Any]
CLIENTS = (4, 8, 16)  # of table 1 of CycleSL
CLASSES = {
    "Sequential SL": "ssl",
    "Agg-based scal. SL": "sflv1",
    "Agg-free scal. SL": "sflv2",
    "CycleSL": "cyclesfl",
}
DATA = {"FEMNIST": "femnist", "CelebA": "celeba", "Shakespeare": "shakespeare", "CIFAR-100": "cifar100"}
KINDS = dict(zip(DATA, ("image classification", "smile detection", "next-char prediction"), strict=False))
KINDS["CIFAR-100"] = KINDS["FEMNIST"]
NO_DATA = "no data"


def costs(item: Item, more: More) -> Sheet:
    """Table 1 of CycleSL: what a scheme of each class costs the server, against the number of clients."""
    adam = OPTIMIZERS["adam"].make()
    with torch_threads():
        found = {c: [measuring.measure(scheme, m, adam, 32) for m in CLIENTS] for c, scheme in CLASSES.items()}
    told = printed.by_place(item.paper, item.name)
    traits = {c: SCHEMES[scheme].make(**SCHEMES[scheme].fixed).traits for c, scheme in CLASSES.items()}
    rows = {
        "Sequential pairing": {c: _yes(t.order == "one_by_one") for c, t in traits.items()},
        "Model aggregation": {c: _yes(t.halves != "one") for c, t in traits.items()},
        "Benefit from scalability": {c: _yes(t.order != "one_by_one") for c, t in traits.items()},
        "Computation intensity": {c: _counts(some, "compute") for c, some in found.items()},
        "Memory consumption": {c: _counts(some, "memory") for c, some in found.items()},
        "Latency": {c: _counts(some, "latency") for c, some in found.items()},
    }
    table = [
        [Entry(name), *(Entry(ours[c], told[c, "", name]["text"]) for c in CLASSES)] for name, ours in rows.items()
    ]
    headings = ["", *(f"{c} ({scheme})" for c, scheme in CLASSES.items())]
    counted = f"with {', '.join(map(str, CLIENTS))} clients"
    notes = (
        f"Three numbers: {counted}. Computation: client batches that the server trains in a step of every client. "
        "Memory: server halves held, with gradients and Adam's moments. Latency: passes that must follow one another.",
    )
    numbers = [{"class": c, **asdict(one)} for c, some in found.items() for one in some]
    return Sheet("", [Section("", headings, table)], numbers, notes)


def _yes(true: bool) -> str:
    return "yes" if true else "no"


def _counts(found: Sequence[measuring.Cost], field: str) -> str:
    return ", ".join(f"{getattr(one, field):.3g}" for one in found)


def _rows_of(task: str, preset: str, more: More) -> tuple[Any, Any] | None:
    """Return the rows of a preset's task and each client's part of them, or None if there are no data."""
    if missing(task, more.get("data_dir")):
        return None
    config = text.parse({**cyclesl.PRESETS[preset].comparison.base, **more})
    return divided(config, load_data(config))


def overview(item: Item, more: More) -> Sheet:
    """Table 2 of CycleSL: classes, clients, samples per client."""
    told = printed.by_place(item.paper, item.name)
    presets = dict(zip(DATA, ("femnist", "celeba", "shakespeare", "cifar100-iid"), strict=True))
    columns: list[dict[str, Any]] = []
    for panel, task in DATA.items():
        found = _rows_of(task, f"cyclesl-{presets[panel]}", more)
        ours: dict[str, Any] = {"panel": panel}
        if found is not None:
            ours["task"] = KINDS[panel]
            rows, parts = found
            sizes = parts.sizes
            mean_std = [float(sizes.mean()), float(sizes.std())]
            ours |= {"classes": len(np.unique(rows.y)), "clients": len(parts), "samples": mean_std}
        columns.append({**ours, "printed": told[panel, "", "data"]})
    table = [
        [Entry(words), *(Entry(_show(one.get(name)), _show(one["printed"][name])) for one in columns)]
        for name, words in (
            ("task", "Task"),
            ("classes", "Classes"),
            ("clients", "Clients"),
            ("samples", "Samples per client"),
        )
    ]
    notes = (
        "Our clients are those the preset trains: owners with too few rows are left out, and the data here may be "
        "a part of what was published.",
    )
    return Sheet("", [Section("", ["Dataset", *DATA], table)], columns, notes)


def _show(value: Any) -> str:
    if value is None:
        return NO_DATA
    if isinstance(value, list):
        return f"{value[0]:.1f} ± {'?' if value[1] is None else format(value[1], '.1f')}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings(item: Item, more: More) -> Sheet:
    """Table 8 of CycleSL: hyper-parameters, from the presets."""
    told = printed.by_place(item.paper, item.name)
    presets = dict(zip(DATA, ("femnist", "celeba", "shakespeare", "cifar100-iid"), strict=True))
    columns = []
    for panel, name in presets.items():
        base = cyclesl.PRESETS[f"cyclesl-{name}"].comparison.base
        optimizer = base["optimizer"]
        ours = {"batch_size": base["batch_size"], "optimizer": optimizer["name"].title(), "lr": optimizer["lr"]}
        columns.append({"panel": panel, **ours, "printed": told[panel, "", "values"]})
    words = (("batch_size", "Batch size"), ("optimizer", "Optimizer"), ("lr", "Learning rate"))
    table = [[Entry(w), *(Entry(_show(c[n]), _show(c["printed"][n])) for c in columns)] for n, w in words]
    return Sheet("", [Section("", ["Dataset", *DATA], table)], columns)


def _model(item: Item, name: str, shape: tuple[int, ...], classes: int, cut: int) -> Sheet:
    """A model's layers, block by block, with its cut; beside each layer what the paper says of it."""
    told = iter(printed.cells(item.paper, item.name))
    with OwnRandomness():
        model = MODELS[name].build({}, {"shape": shape, "classes": classes})
    sizes, rows, numbers = shape_of(model, example(model, shape)), [], []
    for index, block in enumerate(model):
        layers = [str(layer) for layer in block.children()] or [str(block)]
        weights = sum(p.numel() for p in block.parameters())
        side = "client" if index <= cut else "server"
        for number, layer in enumerate(layers):
            ends = number == len(layers) - 1
            size = f"{sizes.elements[index]:,}" if ends else ""
            words = Entry(" ".join(layer.split()), str(next(told, {}).get("text", "")))
            rows.append([words, Entry(f"{index}, {side}"), Entry(size)])
        numbers.append({"block": index, "side": side, "layers": layers, "weights": weights, "macs": sizes.macs[index]})
    total = sum(n["weights"] for n in numbers)
    notes = (f"{total:,} weights. The cut falls after block {cut}: the paper's cut {cut + 1}, which counts from 1.",)
    return Sheet("", [Section("", ["Layer", "Block", "Output"], rows)], numbers, notes)


def leaf_cnn(item: Item, more: More) -> Sheet:
    """Table 9 of CycleSL."""
    return _model(item, "leaf_cnn", (1, 28, 28), 62, 1)


def celeba_cnn(item: Item, more: More) -> Sheet:
    """Table 10 of CycleSL."""
    return _model(item, "celeba_cnn", (3, 84, 84), 2, 1)


def leaf_lstm(item: Item, more: More) -> Sheet:
    """Table 11 of CycleSL."""
    return _model(item, "leaf_lstm", (80,), 80, 1)


def histograms(item: Item, more: More) -> Sheet:
    """Figure 3 of CycleSL: how many samples a client has."""
    panels = {panel: task for panel, task in DATA.items() if task != "cifar100"}
    sizes: dict[str, Any] = {}
    for panel, task in panels.items():
        found = _rows_of(task, f"cyclesl-{task}", more)
        sizes[panel] = None if found is None else found[1].sizes
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    for ax, (panel, known) in zip(figure.subplots(1, len(sizes)), sizes.items(), strict=True):
        if known is not None:
            ax.hist(known, bins=30, color=COLORS[0])
        ax.set(title=panel if known is not None else f"{panel}: {NO_DATA}", xlabel="samples", ylabel="clients")
        tidy(ax)
    return _described("clients' samples", sizes, png(figure))


def _described(what: str, columns: Mapping[str, Any], picture: bytes) -> Sheet:
    """Quantiles of each panel's numbers, below a picture."""
    rows: list[list[Entry]] = []
    numbers: list[dict[str, Any]] = []
    for panel, known in columns.items():
        if known is None:
            rows.append([Entry(panel), *[Entry(NO_DATA)] * 4])
            numbers.append({"panel": panel, "missing": NO_DATA})
            continue
        low, middle, high = (float(np.quantile(known, q)) for q in (0.0, 0.5, 1.0))
        rows.append([Entry(panel), *(Entry(f"{value:,.4g}") for value in (len(known), low, middle, high))])
        told = {"clients": len(known), "least": low, "median": middle, "most": high}
        numbers.append({"panel": panel, **told, "values": _short(known)})
    return Sheet("", [Section(what, ["", "clients", "least", "median", "most"], rows)], numbers, (), picture)


def _short(values: Any) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def mixtures(item: Item, more: More) -> Sheet:
    """Figure 4 of CycleSL: the classes of each client of CIFAR-100, for each mixture."""
    names = {"iid": "iid", "alpha = 1.0": "1.0", "alpha = 0.5": "0.5", "alpha = 0.1": "0.1"}
    shares: dict[str, Any] = {}
    far: dict[str, Any] = {}
    for panel, name in names.items():
        found = _rows_of("cifar100", f"cyclesl-cifar100-{name}", more)
        counts = None if found is None else class_counts(found[1], found[0].y, 100)
        shares[panel] = None if counts is None else counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        far[panel] = None if counts is None else divergence(counts)
    figure = Figure(figsize=(15, 3.8), layout="constrained")
    for ax, (panel, share) in zip(figure.subplots(1, len(shares)), shares.items(), strict=True):
        if share is not None:
            ax.imshow(share.T, aspect="auto", cmap="Blues", vmin=0, vmax=0.2, interpolation="nearest", origin="lower")
        ax.set(title=panel if share is not None else f"{panel}: {NO_DATA}", xlabel="client", ylabel="class")
    return _described("J-S divergence of a client's classes from an even mixture", far, png(figure))


def heterogeneity(item: Item, more: More) -> Sheet:
    """Figure 6 of SMoFi: sizes and mixtures of the clients' data, speeds of their devices."""
    panels = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "Tiny-ImageNet": "tiny"}
    figure = Figure(figsize=(13, 7), layout="constrained")
    top, bottom = figure.subplots(2, len(panels))
    columns: dict[str, Any] = {}
    drawn: list[dict[str, Any]] = []
    for data, machines, (panel, task) in zip(top, bottom, panels.items(), strict=True):
        base = smofi.PRESETS[f"smofi-{task}"].comparison.base
        known = not missing(str(base["task"]), more.get("data_dir"))
        if known:
            config = text.parse({**base, **more})
            rows, parts = divided(config, load_data(config))
            counts = class_counts(parts, rows.y, int(rows.y.max()) + 1)
            data.scatter(parts.sizes, divergence(counts), s=12, color=COLORS[0])
        drawn.append({"divergence": _short(divergence(counts))} if known else {})
        columns[panel] = parts.sizes if known else None
        data.set(title=panel if known else f"{panel}: {NO_DATA}", xlabel="samples", ylabel="J-S divergence")
        devices = draw("lognormal", int(base["clients"]), 0, size(base["model"], str(base["task"])).macs)[:]
        times, speeds = [1000 * d.seconds for d in devices], [d.kbps / 1000 for d in devices]
        machines.scatter(times, speeds, s=12, color=COLORS[2])
        drawn[-1] |= {"ms_a_frame": _short(times), "mbit_s": _short(speeds)}
        machines.set(xlabel="ms a frame", ylabel="Mbit/s", yscale="log")
        tidy(data)
        tidy(machines)
    sheet = _described("clients' samples", columns, png(figure))
    notes = ("The devices are drawn from our guess at the paper's; docs/clock.md says how.",)
    numbers = [{**one, **more} for one, more in zip(sheet.numbers, drawn, strict=True)]
    return Sheet("", sheet.sections, numbers, notes, sheet.picture)
