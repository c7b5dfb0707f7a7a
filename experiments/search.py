"""Choose hyper-parameters for a comparison: the same grid and the same budget for every method, on validation rows.

    python experiments/search.py --out runs/search                          the demo's
    python experiments/search.py --set local_epochs=10 --out runs/search10  the same in another setting
    python experiments/search.py --set 'model={name="resnet",width=8}' rounds=15 --out runs/resnet

Every method is trained with every learning rate x local momentum of GRID, with seeds that the comparison itself does
not use, and tested on a share of the training rows that is set aside: no test row is looked at. The score of a setting
is the mean accuracy over all rounds (the area under its learning curve, which rewards both speed and level), averaged
over the seeds; a setting that diverges scores zero. Writes search.json; an interrupted search goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from itertools import product
from pathlib import Path
from typing import Any

from cutlayer.cli.flags import value
from cutlayer.cli.progress import follow_all
from cutlayer.experiment import compare, config, journal
from cutlayer.experiment.comparison import Comparison, folder
from cutlayer.experiment.methods import Method
from cutlayer.experiment.presets import preset

GRID: dict[str, list[float]] = {"lr": [0.02, 0.05, 0.1, 0.2, 0.4], "momentum": [0.5, 0.9]}
SEEDS = [100, 101]
VALIDATION = 0.2


def settings(methods: list[Method]) -> list[tuple[str, dict[str, float], Method]]:
    """Every method under every point of the grid."""
    found = []
    for m in methods:
        for values in product(*GRID.values()):
            point = dict(zip(GRID, values, strict=True))
            label = m.label + "".join(f" {key} {number:g}" for key, number in point.items())
            found.append((m.label, point, Method(label, config.merge(m.changes, {"optimizer": point}))))
    return found


def score(run: Path, rounds: int) -> float:
    """Mean accuracy over the rounds of a run; zero if it did not get to the end."""
    records = journal.read(run / "journal.jsonl")
    return statistics.fmean(r.accuracy or 0.0 for r in records) if len(records) == rounds else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs and search.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="change the setting of the demo")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="seeds that the comparison does not use")
    args = parser.parse_args()
    demo = preset("demo").comparison
    given = dict(one.split("=", 1) for one in args.set)
    base = config.merge(demo.base, {**{name: value(word) for name, word in given.items()}, "validation": VALIDATION})
    grid = settings(list(demo.methods))
    comparison = Comparison(base, [method for *_, method in grid], args.seeds)
    there = (args.out / compare.FILE).exists()
    lock = compare.resume(args.out, "refuse")[1] if there else compare.start(comparison, args.out, overwrite=False)
    follow_all(compare.train_all(comparison, args.out, args.jobs, lock), quiet=False)
    results: dict[str, list[dict[str, Any]]] = {}
    for label, point, method in grid:
        rounds = comparison.config(method, args.seeds[0]).rounds
        scores = [score(folder(args.out, method, seed), rounds) for seed in args.seeds]
        results.setdefault(label, []).append({**point, "score": statistics.fmean(scores), "scores": scores})
    for label, tried in results.items():
        tried.sort(key=lambda setting: -setting["score"])
        print(label, "best of", len(tried), tried[0])
    found = {"seeds": args.seeds, "validation": VALIDATION, "setting": base, "grid": GRID, "results": results}
    (args.out / "search.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
