"""A method of our own: the study of experiments/own_method.md, which was written before it ran.

    python experiments/own_method.py screen --data-dir DATA --out runs/own     every option alone, on validation rows
    python experiments/own_method.py combine --data-dir DATA --out runs/own    what was better, one added to another
    python experiments/own_method.py choose --data-dir DATA --out runs/own     the best three, tuned; the choice
    python experiments/own_method.py tune --data-dir DATA --out runs/own       the choice and its rivals, on TESTED
    python experiments/own_method.py test --data-dir DATA --out runs/own       with those values, five seeds, test rows
    python experiments/own_method.py show --out runs/own                       the answer so far

Interrupted, each goes on where it was. Each writes what it found into own_method.json beside this file. `--setting`:
tune and test only this one of TESTED.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from study import GLOBAL as BETAS
from study import KEPT as RUNS
from study import MOMENTA, RATES, VALIDATION, Job, Runs, Studied, Study, consistent, set_aside, slug

from cutlayer.experiment import config as text
from cutlayer.report.paired import interval

SEEDS = (100, 101)
KEPT = Path(__file__).with_suffix(".json")
Changes = Mapping[str, Any]
COMMON: dict[str, Any] = {
    **{"train_rows": 10_000, "clients": 100, "participation": 20, "batch_size": 16, "local_epochs": 5},
    "partition": {"name": "dirichlet", "gamma": 0.2},
    "optimizer": {"name": "sgd", "weight_decay": 5e-4, "decay": 0.998},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "fashion_mnist": {**COMMON, "task": "fashion_mnist", "model": {"name": "cnn"}, "cut": 0},
    "cifar10": {**COMMON, "task": "cifar10", "model": {"name": "resnet", "width": 8}, "cut": 1},
}
GLOBAL = {"update": {"name": "fedavgm", "beta": 0.3}}
FRONT = {"update": {"name": "fedavgm", "beta": 0.3, "half": "front"}}
MOMENTUM: dict[str, Changes] = {", global momentum": GLOBAL, ", global momentum on the front": FRONT}
COMPARED: dict[str, Changes] = {
    "SMoFi": {"scheme": {"name": "smofi"}},
    "SMoFi + FedAvgM": {"scheme": {"name": "smofi"}, **GLOBAL},
    "FedAvgM": {"scheme": {"name": "fedavg"}, **GLOBAL},
    "SFLV2": {"scheme": {"name": "sflv2", "reset": "round"}},
    "CycleSFL": {"scheme": {"name": "cyclesfl"}},
}
TESTED: dict[str, dict[str, Any]] = {
    "cifar100": {**COMMON, "task": "cifar100", "model": {"name": "resnet", "width": 8}, "cut": 1},
    "tiny_imagenet": {**COMMON, "task": "tiny_imagenet", "model": {"name": "resnet18", "width": 8}, "cut": 2},
    "femnist": {
        **{**COMMON, "task": "femnist", "model": {"name": "leaf_cnn", "width": 16, "hidden": 256}, "cut": 1},
        **{"train_rows": None, "clients": None, "partition": {"name": "file", "path": "femnist-aside.json"}},
    },
    "shakespeare": {
        **{**COMMON, "task": "shakespeare", "model": {"name": "transformer", "width": 32, "heads": 2, "hidden": 64}},
        **{"cut": 2, "train_rows": None, "clients": None, "participation": 10, "batch_size": 32, "local_epochs": 1},
        "partition": {"name": "file", "path": "shakespeare-aside.json"},
    },
}
ROUNDS, MORE = 30, 50  # of a test; and with the work of a server that is trained twice, 5/3
LAST = 10  # rounds whose mean accuracy is compared
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
            values = {**base, "rounds": rounds, "validation": VALIDATION, "data_dir": args.data_dir, "seed": seed}
            name = f"lr{point['lr']:g}-momentum{point['momentum']:g}-rounds{rounds}"
            folder = args.out / task / slug(label) / name / f"seed-{seed}"
            at = text.merge(consistent(changes, point), {"optimizer": point})
            jobs.append(Job(text.merge(values, at), folder, rounds))
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
    """Add the options that were better to the best of them, one by one, while that helps; then global momentum."""
    scores = json.loads(KEPT.read_text())["screen"]
    best, *others = sorted(better(), key=lambda name: -scores[name]["score"])
    found = {best: scores[best]}

    def attempt(label: str) -> None:
        found.update(trained({label: ours(label)}, points((0.02, 0.05), (0.9,)), 8, args))

    for name in others:
        attempt(f"{best} + {name}")
        best = max(best, f"{best} + {name}", key=lambda label: found[label]["score"])
    for ending in MOMENTUM:
        attempt(f"{best}{ending}")
    keep("combine", found)


def ours(label: str) -> Changes:
    """The config of one of our own methods, by the label that `screen` and `combine` gave it."""
    for ending, update in MOMENTUM.items():
        if label.endswith(ending):
            return {**aligned(*label.removesuffix(ending).split(" + ")), **update}
    return aligned(*label.split(" + "))


def choose(args: argparse.Namespace) -> None:
    known = json.loads(KEPT.read_text())
    scores = {**known["screen"], **known["combine"]}
    best = sorted((label for label in scores if label not in COMPARED), key=lambda label: -scores[label]["score"])
    keep("choose", trained({label: ours(label) for label in best[:3]}, points((0.02, 0.05), (0.5, 0.9)), 20, args))


def chosen() -> str:
    """The label of the method that was chosen."""
    found: dict[str, Any] = json.loads(KEPT.read_text())["choose"]
    return max(found, key=lambda label: found[label]["score"])


def rivals(setting: str) -> list[Studied]:
    """What is tested: the choice first, then what it is compared with. Global momentum is tuned where there is any."""
    methods = {chosen(): ours(chosen()), **{label: COMPARED[label] for label in COMPARED if label != "SMoFi"}}
    grid = {"lr": RATES, "momentum": MOMENTA}
    out = []
    for label, changes in methods.items():
        kept = {key: value for key, value in changes.items() if key != "update"}
        if "update" not in changes:
            out.append(Studied(label, kept, grid))
            continue
        half = {key: value for key, value in changes["update"].items() if key == "half"}
        out.append(Studied(label, {**kept, "update": half}, {**grid, "beta_g": BETAS}))
    return out


def cycles(m: Studied) -> bool:
    """Whether a method trains its server twice on what it is sent."""
    return m.changes["scheme"]["name"].startswith("cycle") or bool(m.changes["scheme"].get("cycle"))


def rounds_of(m: Studied) -> int:
    return ROUNDS if cycles(m) else MORE


def prepare(args: argparse.Namespace) -> Study:
    for task, least, most in (("femnist", 35, None), ("shakespeare", 800, 1600)) if args.what != "show" else ():
        set_aside(task, least, args.data_dir, args.out, most)
    return Study("own", TESTED, rivals, args.out, args.data_dir, args.jobs, rounds_of)


def tune(args: argparse.Namespace) -> None:
    for setting in args.setting or TESTED:
        print(setting, json.dumps(prepare(args).tune(setting), indent=1))


def test(args: argparse.Namespace) -> None:
    for setting in args.setting or TESTED:
        prepare(args).test(setting)


def show(args: argparse.Namespace) -> None:
    """Print, for every data set, the choice less each of the others, with the work of each; write it down."""
    study, best = prepare(args), chosen()
    answer: dict[str, Any] = {}
    for setting in TESTED:
        if not study.tuned(setting).exists():
            continue
        runs = study.runs(setting)
        scores: dict[str, dict[int, dict[str, Any]]] = {}
        for m, seed, job in study.tests(setting):
            line = runs.known().get(runs.name(job.folder))
            for upto in sorted({ROUNDS, job.upto}) if line is not None else ():
                label = m.label if upto == ROUNDS else f"{m.label}, {upto} rounds"
                scores.setdefault(label, {})[seed] = _found(line, upto)  # type: ignore[arg-type]
        answer[setting] = {label: _against(scores.get(best, {}), each) for label, each in scores.items()}
        for label, one in answer[setting].items():
            less = "" if label == best or one["less"] is None else "{:+.2f} ± {:.2f} points".format(*one["less"])
            print(f"{setting:14} {100 * one['last_ten']:6.2f} %  {label:40} {less}")
    known = json.loads(KEPT.read_text())
    KEPT.write_text(json.dumps({**known, "test": answer}, indent=1) + "\n")


def _found(line: Mapping[str, Any], upto: int) -> dict[str, Any]:
    """The score of a run up to a round, and about what it had cost by then: its mean round, so many times. A run that
    diverged is scored by the rounds it has."""
    last = line["accuracy"][:upto][-LAST:]
    share = min(1.0, upto / max(1, len(line["accuracy"])))
    costs = {name: share * line[name] for name in ("bytes_up", "bytes_down", "macs_client", "macs_server")}
    return {"last_ten": statistics.fmean(last) if last else 0.0, **costs}


def _against(best: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the seeds; `less`: what the choice has over it, seed by seed, in points, with its 95 % interval."""
    means = {name: statistics.fmean(one[name] for one in other.values()) for name in next(iter(other.values()))}
    both = sorted(best.keys() & other.keys())
    found = interval([100 * (best[seed]["last_ten"] - other[seed]["last_ten"]) for seed in both])
    return {"seeds": sorted(other), **means, "less": None if found is None else [found.mean, found.half]}


STAGES = {"screen": screen, "combine": combine, "choose": choose, "tune": tune, "test": test, "show": show}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(STAGES))
    parser.add_argument("--setting", nargs="+", choices=tuple(TESTED), help="default: all")
    parser.add_argument("--data-dir", help="folder of data sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    STAGES[args.what](args)


if __name__ == "__main__":
    main()
