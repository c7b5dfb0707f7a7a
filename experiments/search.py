"""Choose hyper-parameters for a comparison: the same grid and the same budget for every method.

    python experiments/search.py --out runs/search

Every method is trained with every learning rate x local momentum of GRID, with seeds that the comparison itself does
not use. The score of a setting is the mean test accuracy over all rounds (the area under its learning curve, which
rewards both speed and level), averaged over the seeds; a setting that diverges scores zero. Writes search.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

from cutlayer.cli.progress import follow_all
from cutlayer.experiment import compare, config, journal
from cutlayer.experiment.methods import Method

GRID: dict[str, list[float]] = {"lr": [0.02, 0.05, 0.1, 0.2, 0.4], "momentum": [0.5, 0.9]}
SEEDS = [100, 101]
PRESET = Path(__file__).parent.parent / "cutlayer" / "presets" / "demo.toml"


def settings(preset: dict[str, Any]) -> list[tuple[str, dict[str, float], Method]]:
    """Every method of the preset under every point of the grid."""
    found = []
    for entry in preset["methods"]:
        changes = {key: value for key, value in entry.items() if key != "label"}
        for values in product(*GRID.values()):
            point = dict(zip(GRID, values, strict=True))
            merged = config.merge(changes, {"optimizer": point})
            label = entry["label"] + "".join(f" {key} {value:g}" for key, value in point.items())
            found.append((entry["label"], point, Method(label, merged)))
    return found


def score(folder: Path, rounds: int) -> float:
    """Mean accuracy over the rounds of a run; zero if it did not get to the end."""
    records = journal.read(folder / "journal.jsonl")
    return statistics.fmean(r.accuracy or 0.0 for r in records) if len(records) == rounds else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs and search.json; goes on if there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    args = parser.parse_args()
    preset = tomllib.loads(PRESET.read_text())
    grid = settings(preset)
    comparison = compare.Comparison(preset["base"], [method for *_, method in grid], SEEDS)
    if not (args.out / "compare.toml").exists():
        compare.start(comparison, args.out, overwrite=False)
    follow_all(compare.train_all(comparison, args.out, args.jobs), quiet=False)
    results: dict[str, list[dict[str, Any]]] = {}
    for label, point, method in grid:
        rounds = comparison.config(method, SEEDS[0]).rounds
        scores = [score(compare.folder(args.out, method, seed), rounds) for seed in SEEDS]
        results.setdefault(label, []).append({**point, "score": statistics.fmean(scores), "scores": scores})
    for label, tried in results.items():
        tried.sort(key=lambda setting: -setting["score"])
        print(label, "best of", len(tried), tried[0])
    (args.out / "search.json").write_text(json.dumps({"seeds": SEEDS, "grid": GRID, "results": results}, indent=1))


if __name__ == "__main__":
    main()
