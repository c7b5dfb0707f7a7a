"""Three scales: as the paper has it; `workstation`, for one GPU; `laptop`, where one block and column of a table takes
at most an hour with one seed on two cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cutlayer.errors import unknown
from cutlayer.experiment import config as text
from cutlayer.registry import MODELS

SCALES = ("laptop", "workstation", "paper")
SEEDS = {"smofi": (0, 1, 2), "cyclesl": (0, 1, 2, 3, 4)}  # the papers' numbers of trials
PUBLISHED = {"cifar10": 50_000, "cifar100": 50_000, "tiny_imagenet": 100_000}  # training rows, all of which are used
WIDTHS = ("width", "growth")  # parameters that make a model narrower


@dataclass(frozen=True)
class Reduced:
    """What a scale changes of a task. `narrow`: the model's layers are so many times narrower. `steps`: the fixed
    number of steps of methods that have one: the mean of the others'."""

    narrow: int = 1
    steps: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


FEW = {"train_rows": 10_000, "batch_size": 16, "rounds": 30}
LAPTOP: dict[tuple[str, str], Reduced] = {
    ("smofi", "cifar10"): Reduced(8, 29, FEW),
    ("smofi", "cifar100"): Reduced(8, 29, FEW),
    ("smofi", "tiny_imagenet"): Reduced(8, 29, {**FEW, "train_rows": 5_000, "clients": 50, "participation": 10}),
    ("smofi", "shakespeare"): Reduced(
        steps=45,
        values={
            "model": {"width": 32, "heads": 2, "hidden": 64},
            "clients": 30,
            "participation": 6,
            "partition": {"max_size": 1600},  # of which a tenth is held out, less 79 rows that overlap with the others
            "batch_size": 32,
            "local_epochs": 1,
            "rounds": 30,
        },
    ),
    ("smofi", "speech_commands"): Reduced(
        8,
        22,
        {
            "train_rows": 800,
            "clients": 20,
            "participation": 5,
            "batch_size": 8,
            "rounds": 40,
            "partition": {"min_size": 8},
        },
    ),
    ("cyclesl", "femnist"): Reduced(2, values={"model": {"hidden": 256}, "clients": 250, "rounds": 200}),
    ("cyclesl", "celeba"): Reduced(2, values={"clients": 250, "rounds": 200}),
    ("cyclesl", "shakespeare"): Reduced(values={"model": {"hidden": 64}, "clients": 100, "rounds": 200}),
    ("cyclesl", "cifar100"): Reduced(8, values={"train_rows": 10_000, "rounds": 200}),
}
OF_CLIENTS = {10: 3, 20: 5, 30: 8}  # table 4 varies the clients of a round; at laptop scale there are a quarter as many


def scaled(values: Mapping[str, Any], scale: str) -> dict[str, Any]:
    """Return a config of the paper at a scale."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if scale == "paper":
        return dict(values)
    if scale == "workstation":
        return {**values, "rounds": max(1, values["rounds"] // 4)}
    task = str(values["task"])
    reduced = LAPTOP[str(values.get("protocol", "smofi")), task]
    changes: dict[str, Any] = dict(reduced.values)
    part = MODELS[values["model"]["name"]]
    narrow = {name: max(1, part.takes[name].default // reduced.narrow) for name in WIDTHS if name in part.takes}
    changes["model"] = {**(narrow if reduced.narrow > 1 else {}), **changes.get("model", {})}
    if task == "tiny_imagenet" and values["participation"] in OF_CLIENTS:
        changes["participation"] = OF_CLIENTS[values["participation"]]
    changes["rounds"] = min(changes["rounds"], values["rounds"])
    if values.get("local_steps") is not None:
        changes["local_steps"] = reduced.steps
    return text.merge(values, changes)


def differences(values: Mapping[str, Any], scale: str) -> Iterator[str]:
    """What a scale changes of a config, in words."""
    now = scaled(values, scale)
    for key in dict.fromkeys((*values, *now)):
        usual_rows = PUBLISHED.get(str(values["task"])) if key == "train_rows" else None
        was, becomes = values.get(key, usual_rows), now.get(key)
        if isinstance(becomes, Mapping):
            usual = {name: one.default for name, one in MODELS[becomes["name"]].takes.items()} if key == "model" else {}
            inside = {name: ({**usual, **(was or {})}.get(name), value) for name, value in becomes.items()}
            changed = {f"{key}.{name}": pair for name, pair in inside.items() if pair[0] != pair[1]}
        else:
            changed = {key: (was, becomes)} if was != becomes else {}
        for name, (before, after) in changed.items():
            yield f"{name} {after}" + ("" if before is None else f" (paper: {before})")


def reductions(cells: Sequence[Mapping[str, Any]], scale: str) -> list[str]:
    """What a scale changes, a line for each task, model and change."""
    found: dict[str, dict[str, None]] = {}
    for values in cells:
        words = found.setdefault(f"{values['task']}, {values['model']['name']}", {})
        words |= dict.fromkeys(differences(values, scale))
    return [f"{name}: {', '.join(words)}" for name, words in found.items() if words]


def seeds(paper: str, scale: str) -> tuple[int, ...]:
    """The seeds of a scale, unless others are given: the paper's number of them, or one."""
    return SEEDS[paper] if scale == "paper" else (0,)
