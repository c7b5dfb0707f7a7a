"""Schemes with one server model, with one and with two threads inside each operation, beside plain training.

python experiments/torch_threads.py resnet9 --schemes cyclesfl cyclepsl     a case of `cutlayer bench`; about 5 minutes

Rounds are taken in turn in one process: above 1, a round is faster than plain training of the same samples.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

import cutlayer as cl
from cutlayer.bench.cases import CASES, Case
from cutlayer.core import heap

SCHEMES = ("sflv2", "ssl", "cyclesfl", "cyclepsl", "cyclesglr", "cyclessl")


def plain(case: Case) -> Iterator[None]:
    """Centralised training of the same model on the same samples, an epoch at a time."""
    model, data = case.build(), case.data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    while True:
        for x, y in data:
            for a, b in zip(x.split(case.batch), y.split(case.batch), strict=True):
                optimizer.zero_grad()
                case.loss(model(a), b).backward()
                optimizer.step()
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=tuple(CASES))
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--steps", type=int, default=2, help="of each client in a round")
    parser.add_argument("--turns", type=int, default=3, help="rounds that are measured")
    args = parser.parse_args()
    heap.keep()
    case = replace(CASES[args.case], steps=args.steps)
    given = {"cut": case.cut, "batch_size": case.batch, "local_epochs": 1, "loss": case.loss, "rounds": args.turns + 1}
    runs: dict[str, Iterator[object]] = {"plain": plain(case)}
    for scheme in args.schemes:
        for n in (1, 2):
            runs[f"{scheme}, {n}"] = cl.rounds(case.build(), case.data(), scheme=scheme, torch_threads=n, **given)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(args.turns + 1):
        for name, rounds in runs.items():
            torch.set_num_threads(2)
            begin = time.perf_counter()
            next(rounds)
            if turn:  # the first one is slower
                seconds[name].append(time.perf_counter() - begin)
    base = statistics.median(seconds["plain"])
    for name, took in seconds.items():
        print(f"{name}: {statistics.median(took):.2f} s a round, {base / statistics.median(took):.2f} over plain")


if __name__ == "__main__":
    main()
