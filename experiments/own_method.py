"""A method of our own: the study of experiments/own_method.md, which was written before it ran.

    python experiments/own_method.py screen --data-dir DATA --out runs/own     every option alone, on validation rows
    python experiments/own_method.py combine --data-dir DATA --out runs/own    what was better, in pairs and together
    python experiments/own_method.py choose --data-dir DATA --out runs/own     the best three, tuned; the choice

Interrupted, each goes on where it was. Each writes its scores into own_method.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from study import KEPT as RUNS
from study import VALIDATION, Job, Runs, slug

from cutlayer.experiment import config as text

SEEDS = (100, 101)
KEPT = Path(__file__).with_suffix(".json")
Changes = Mapping[str, Any]
COMMON: dict[str, Any] = {
    **{"train_rows": 10_000, "clients": 100, "participation": 20, "batch_size": 16, "local_epochs": 5},
    **{"partition": {"name": "dirichlet", "gamma": 0.2}, "validation": VALIDATION},
    "optimizer": {"name": "sgd", "weight_decay": 5e-4, "decay": 0.998},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "fashion_mnist": {**COMMON, "task": "fashion_mnist", "model": {"name": "cnn"}, "cut": 0},
    "cifar10": {**COMMON, "task": "cifar10", "model": {"name": "resnet", "width": 8}, "cut": 1},
}
GLOBAL = {"update": {"name": "fedavgm", "beta": 0.3}}
FRONT = {"update": {"name": "fedavgm", "beta": 0.3, "half": "front"}}
COMPARED: dict[str, Changes] = {
    "SMoFi": {"scheme": {"name": "smofi"}},
    "SMoFi + FedAvgM": {"scheme": {"name": "smofi"}, **GLOBAL},
    "FedAvgM": {"scheme": {"name": "fedavg"}, **GLOBAL},
    "SFLV2": {"scheme": {"name": "sflv2", "reset": "round"}},
    "CycleSFL": {"scheme": {"name": "cyclesfl"}},
}
OPTIONS: dict[str, Changes] = {
    "carried 0.5": {"scheme": {"kappa": 0.5}},
    "carried 0.9": {"scheme": {"kappa": 0.9}},
    "carried 0.9, global on the front": {"scheme": {"kappa": 0.9}, **FRONT},
    "consistent": {"scheme": {"fade": 0.9, "weights": "samples"}},
    "by samples": {"scheme": {"weights": "samples"}},
    "elastic 0.02": {"scheme": {"rho": 0.02}},
    "elastic 0.1": {"scheme": {"rho": 0.1}},
    "elastic 0.5": {"scheme": {"rho": 0.5}},
    "elastic 0.2, ramped": {"scheme": {"rho": 0.2, "ramp": 20}},
    "corrected 0.5": {"scheme": {"lam": 0.5}},
    "corrected 1": {"scheme": {"lam": 1.0}},
    "calibrated 0.3": {"calibrate": 0.3},
    "calibrated 1": {"calibrate": 1.0},
    "cycled": {"scheme": {"cycle": True}},
    "cycled, elastic 0.5": {"scheme": {"cycle": True, "rho": 0.5}},
    "cycled, elastic 1": {"scheme": {"cycle": True, "rho": 1.0}},
    "adaptive": {"scheme": {"adaptive": True}},
    "clients too": {"scheme": {"fuse_clients": True}},
}


def aligned(*options: str) -> Changes:
    """The config of several options together."""
    out: dict[str, Any] = {"scheme": {"name": "aligned"}}
    for name in options:
        out = text.merge(out, OPTIONS[name])
    return out


def points(rates: Sequence[float], momenta: Sequence[float]) -> list[dict[str, float]]:
    return [{"lr": lr, "momentum": m} for lr, m in product(rates, momenta)]


def trained(
    methods: Mapping[str, Changes], some: Sequence[Mapping[str, float]], rounds: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Train every method at every point; return the best point's score, by data set and together."""
    places: dict[tuple[str, int, str], list[Path]] = {}
    jobs = []
    for (label, changes), (k, point), (task, base) in product(methods.items(), enumerate(some), SETTINGS.items()):
        for seed in SEEDS:
            values = {**base, "rounds": rounds, "data_dir": args.data_dir, "seed": seed}
            name = f"lr{point['lr']:g}-momentum{point['momentum']:g}-rounds{rounds}"
            folder = args.out / task / slug(label) / name / f"seed-{seed}"
            fade = changes.get("scheme", {}).get("fade")
            at = text.merge(changes, {"scheme": {"fade": point["momentum"]}}) if fade is not None else changes
            jobs.append(Job(text.merge(values, text.merge(at, {"optimizer": point})), folder, rounds))
            places.setdefault((label, k, task), []).append(folder)
    runs = Runs(args.out, RUNS / "own.jsonl")
    runs.train(jobs, args.jobs)
    found: dict[str, Any] = {}
    for label in methods:
        tried = []
        for k, point in enumerate(some):
            each = {t: statistics.fmean(runs.score(f, rounds) for f in places[label, k, t]) for t in SETTINGS}
            tried.append({**point, **each, "score": statistics.fmean(each.values())})
        found[label] = max(tried, key=lambda one: one["score"])
    return found


def keep(stage: str, found: Mapping[str, Any]) -> None:
    """Write a stage's scores, and print them, best first."""
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    KEPT.write_text(json.dumps({**known, stage: found}, indent=1) + "\n")
    for label, one in sorted(found.items(), key=lambda item: -item[1]["score"]):
        print(f"{100 * one['score']:6.2f}  {label}  {one}")


def screen(args: argparse.Namespace) -> None:
    methods = {**COMPARED, **{name: aligned(name) for name in OPTIONS}}
    keep("screen", trained(methods, points((0.02, 0.05), (0.9,)), 8, args))


def better() -> list[str]:
    """The options that were better than SMoFi on both data sets when they were screened; of a family the best."""
    found = json.loads(KEPT.read_text())["screen"]
    won = [n for n in OPTIONS if all(found[n][task] > found["SMoFi"][task] for task in SETTINGS)]
    families: dict[str, str] = {}
    for name in sorted(won, key=lambda n: found[n]["score"]):
        families[name.split()[0].rstrip(",")] = name
    return list(families.values())


def combine(args: argparse.Namespace) -> None:
    won = better()
    sets = [*combinations(won, 2), *([tuple(won)] if len(won) > 2 else [])]
    methods = {" + ".join(names): aligned(*names) for names in sets}
    methods |= {f"{label}, global momentum": {**changes, **GLOBAL} for label, changes in methods.items()}
    keep("combine", trained(methods, points((0.02, 0.05), (0.9,)), 8, args))


def choose(args: argparse.Namespace) -> None:
    known = json.loads(KEPT.read_text())
    scores = {**known["screen"], **known["combine"]}
    ours = [label for label in scores if label not in COMPARED]
    three = sorted(ours, key=lambda label: -scores[label]["score"])[:3]
    methods = {**COMPARED}
    for label in three:
        names = label.removesuffix(", global momentum").split(" + ")
        methods[label] = {**aligned(*names), **(GLOBAL if label.endswith("global momentum") else {})}
    keep("choose", trained(methods, points((0.01, 0.02, 0.05, 0.1), (0.5, 0.9)), 20, args))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("screen", "combine", "choose"))
    parser.add_argument("--data-dir", help="folder of data sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    {"screen": screen, "combine": combine, "choose": choose}[args.what](args)


if __name__ == "__main__":
    main()
