"""Is it fusion? The study of experiments/is_it_fusion.md, which was written before it ran.

    python experiments/is_it_fusion.py tune --data-dir DATA --out runs/fusion   choose values on validation rows
    python experiments/is_it_fusion.py test --data-dir DATA --out runs/fusion   train with them, five seeds, test rows
    python experiments/is_it_fusion.py show --out runs/fusion                   the answer so far; is_it_fusion.json

Interrupted, each goes on where it was. `--setting` is one of SETTINGS; the first is the study's own.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from study import GLOBAL, KEPT, MOMENTA, RATES, Studied, Study, set_aside

from cutlayer.report.curves import draw
from cutlayer.report.measure import Measure
from cutlayer.report.paired import Difference, difference
from cutlayer.report.summary import Outcome, Row, Trained, tabulate

PRIMARY = ("SMoFi + FedAvgM", "FedAvgM")
HEAD = """| method | values | mean of the last ten, % | SMoFi + FedAvgM less it | R | T | drift, server | seeds |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"""
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
    """Print the page's table of a setting, with the comparisons that were named beforehand; write the numbers into
    is_it_fusion.json beside this file, and the curves into studies/."""
    outcomes: dict[str, list[Outcome]] = {m.label: [] for m in methods(setting)}
    runs, tests = study.runs(setting), list(study.tests(setting))
    for m, seed, job in tests:
        rounds = runs.rounds(job.folder)
        if rounds:
            outcomes[m.label].append(Outcome(seed, rounds, "complete" if len(rounds) == job.upto else "diverged"))
    found = tabulate([Trained(label, some) for label, some in outcomes.items()], Measure("last_ten"))
    rows = {row.label: row for row in found.rows if row.outcomes}
    chosen = json.loads(study.tuned(setting).read_text())["chosen"]
    kept: dict[str, Any] = {"primary": PRIMARY, "target": found.target, "rows": {}}
    print(f"{setting}: R and T are rounds and simulated time to {found.goal}\n\n{HEAD}")
    for label, row in rows.items():
        less = difference(rows[PRIMARY[0]], row, found) if PRIMARY[0] in (rows.keys() - {label}) else None
        kept["rows"][label] = {**_numbers(row), "less": less and [less.score.mean, less.score.half]}
        print(_line(row, chosen[label], less))
    folders = {runs.name(job.folder) for *_, job in tests}
    print("\n" + _origin([line for name, line in runs.known().items() if name in folders]))
    (KEPT / f"fusion-{setting}.png").write_bytes(draw(found))
    path = Path(__file__).with_name("is_it_fusion.json")
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, setting: kept}, indent=1) + "\n")


def _numbers(row: Row) -> dict[str, Any]:
    """What is written down of a method: every seed's scores, and the means."""
    drift = [value for o in row.outcomes for _, value in o.values("drift_server")]
    return {
        "seeds": [o.seed for o in row.outcomes],
        "last_ten": [o.last_ten for o in row.outcomes],
        "best": [o.best for o in row.outcomes],
        "rounds_to_target": row.rounds_to_target,
        "time_to_target": row.time_to_target,
        "drift_server": statistics.fmean(drift) if drift else None,
    }


def _line(row: Row, values: Mapping[str, float], less: Difference | None) -> str:
    """A line of the page's table."""
    seeds, drift = len(row.outcomes), _numbers(row)["drift_server"]
    cells = (
        row.label,
        ", ".join(f"{name} {value:g}" for name, value in values.items()),
        f"{100 * row.score:.2f} ± {100 * row.score_std:.2f}",
        f"{100 * less.score.mean:+.2f} ± {100 * less.score.half:.2f}" if less else "",
        f"{row.rounds_to_target:.1f}" if row.rounds_to_target else f"{row.reached} of {seeds} seeds",
        f"{row.time_to_target / 3600:.2f} h" if row.time_to_target else "-",
        "-" if drift is None else f"{drift:.2f}",
        str(seeds),
    )
    return f"| {' | '.join(cells)} |"


def _origin(lines: Sequence[Mapping[str, Any]]) -> str:
    """Where runs come from: how many, how long, which commits, which machines."""
    hours = math.fsum(line["seconds"] for line in lines) / 3600
    commits = ", ".join(sorted({line["commit"] for line in lines}))
    machines = "; ".join(sorted({line.get("machine", "a machine that was not noted") for line in lines}))
    return f"{len(lines)} runs, {hours:.1f} hours of one core; commits {commits}; {machines}"


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
