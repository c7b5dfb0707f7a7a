"""Is it fusion? The study of experiments/is_it_fusion.md, which was written before it ran.

    python experiments/is_it_fusion.py tune --data-dir DATA --out runs/fusion   choose values on validation rows
    python experiments/is_it_fusion.py test --data-dir DATA --out runs/fusion   train with them, five seeds, test rows
    python experiments/is_it_fusion.py show --out runs/fusion                   the answer so far; is_it_fusion.json

Interrupted, each goes on where it was. `--setting` is one of SETTINGS; the first is the study's own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from study import GLOBAL, MOMENTA, RATES, Studied, Study, set_aside

from cutlayer.report.measure import Measure
from cutlayer.report.paired import difference
from cutlayer.report.summary import Outcome, Trained, tabulate

PRIMARY = ("SMoFi + FedAvgM", "FedAvgM")
BOTH = {"lr": RATES, "momentum": MOMENTA, "beta_g": GLOBAL}
METHODS = (
    Studied("FedAvg", {"scheme": "fedavg"}),
    Studied("FedAvgM", {"scheme": "fedavg"}, BOTH),
    Studied("SMoFi", {"scheme": "smofi"}),
    Studied("SMoFi + FedAvgM", {"scheme": "smofi"}, BOTH),
    Studied("SFLV2 (reset each round)", {"scheme": {"name": "sflv2", "reset": "round"}}),
    Studied("FedNAG", {"scheme": "fedavg", "update": {"name": "fednag"}}, {"lr": RATES, "momentum": MOMENTA[1:]}),
    Studied(
        "control (a): no local momentum, FedAvgM(0.9)",
        {"scheme": "fedavg", "update": {"name": "fedavgm", "beta": 0.9}},
        {"lr": RATES, "momentum": (0.0,)},
    ),
    Studied(
        "control (b): momentum on the front, FedAvgM on the back",
        {"scheme": "fedavg", "update": {"half": "back"}, "fixed": {"server_momentum": 0.0}},
        {"lr": RATES, "momentum": (0.9,), "beta_g": GLOBAL},
    ),
)
CIFAR: dict[str, Any] = {
    "task": "cifar10",
    "train_rows": 20_000,
    "model": {"name": "resnet", "width": 8},
    "cut": 1,
    "clients": 100,
    "participation": 20,
    "partition": {"name": "dirichlet", "gamma": 0.2},
    "batch_size": 32,
    "local_epochs": 5,
    "rounds": 60,
    "profile": "lte",
    "optimizer": {"name": "sgd", "weight_decay": 5e-4, "decay": 0.998},
}
WRITERS: dict[str, Any] = {
    **{"task": "femnist", "model": {"name": "leaf_cnn", "width": 16, "hidden": 256}, "cut": 1, "clients": None},
    **{"train_rows": None, "partition": {"name": "file", "path": "femnist-open.json"}},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "cifar10": CIFAR,
    "cifar10-10": {**CIFAR, "train_rows": 10_000, "participation": 10, "rounds": 30},
    "cifar10-40": {**CIFAR, "train_rows": 10_000, "participation": 40, "rounds": 30},
    "femnist": {**CIFAR, **WRITERS, "rounds": 30},
    "femnist-cyclesl": {
        **{**CIFAR, **WRITERS, "protocol": "cyclesl", "participation": 0.05, "last_batch": "keep"},
        **{"rounds": 300, "evaluate_every": 10},
    },
    "speech": {
        **{**CIFAR, "task": "speech_commands", "model": {"name": "vgg11", "width": 8}, "cut": 2, "train_rows": None},
        **{"clients": 20, "participation": 5, "batch_size": 8, "partition": {"name": "dirichlet", "min_size": 8}},
    },
}
LONGER = {"femnist-cyclesl": 20}  # a round is one batch of each client there
FEWER = ("FedAvg", "FedAvgM", "SMoFi", "SMoFi + FedAvgM", "control (a): no local momentum, FedAvgM(0.9)")


def methods(setting: str) -> list[Studied]:
    """The methods of a setting. FedNAG averages momentum that protocol cyclesl leaves to each client."""
    if setting in ("cifar10-10", "cifar10-40"):
        return [m for m in METHODS if m.label in FEWER]
    return [m for m in METHODS if not (m.label == "FedNAG" and SETTINGS[setting].get("protocol") == "cyclesl")]


def show(study: Study, setting: str) -> None:
    """Print the table and the comparisons that were named beforehand; write is_it_fusion.json beside this file."""
    outcomes: dict[str, list[Outcome]] = {m.label: [] for m in methods(setting)}
    runs = study.runs(setting)
    for m, seed, job in study.tests(setting):
        rounds = runs.rounds(job.folder)
        if rounds:
            outcomes[m.label].append(Outcome(seed, rounds, "complete" if len(rounds) == job.upto else "diverged"))
    found = tabulate([Trained(label, some) for label, some in outcomes.items()], Measure("last_ten"))
    rows = {row.label: row for row in found.rows}
    kept: dict[str, Any] = {"setting": setting, "primary": PRIMARY, "rows": {}, "differences": {}}
    for label, row in rows.items():
        drift = [r.drift_server for o in row.outcomes for r in o.rounds if r.drift_server is not None]
        kept["rows"][label] = {
            "seeds": [o.seed for o in row.outcomes],
            "last_ten": [o.last_ten for o in row.outcomes],
            "best": [o.best for o in row.outcomes],
            "rounds_to_target": row.rounds_to_target,
            "time_to_target": row.time_to_target,
            "drift_server": statistics.fmean(drift) if drift else None,
        }
        other = difference(rows[PRIMARY[0]], row, found)
        if other is not None and label != PRIMARY[0]:
            kept["differences"][label] = [other.score.mean, other.score.half]
            star = " *" if other.score.excludes_zero else ""
            print(f"{PRIMARY[0]} - {label}: {100 * other.score.mean:+.2f} ± {100 * other.score.half:.2f} points{star}")
        print(label, f"{100 * row.last_ten:.2f} %", "R", row.rounds_to_target)
    path = Path(__file__).with_name("is_it_fusion.json")
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, setting: kept}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "test", "show"))
    parser.add_argument("--setting", default="cifar10", choices=tuple(SETTINGS))
    parser.add_argument("--data-dir", help="folder of data sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    study = Study("fusion", SETTINGS, methods, args.out, args.data_dir, args.jobs, longer=LONGER)
    if SETTINGS[args.setting]["partition"]["name"] == "file" and args.what != "show":
        set_aside("femnist", 35, args.data_dir, args.out)
    if args.what == "tune":
        print(json.dumps(study.tune(args.setting), indent=1))
    elif args.what == "test":
        study.test(args.setting)
    else:
        show(study, args.setting)


if __name__ == "__main__":
    main()
