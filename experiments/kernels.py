"""Where the time of a round goes, operator by operator, under SMoFi in one thread.

python experiments/kernels.py resnet9          a case of `cutlayer bench`; about a minute
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

import cutlayer as cl
from cutlayer.bench.cases import CASES
from cutlayer.core import heap

MODELS = ("conv", "mm", "norm", "relu", "threshold", "clamp", "pool", "lstm", "rnn", "softmax", "nll", "embedding")
MODELS += ("gelu", "tanh", "sigmoid", "attention", "dropout", "bernoulli")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=tuple(CASES))
    parser.add_argument("--steps", type=int, default=4, help="of each client, in the measured round")
    args = parser.parse_args()
    heap.keep()
    torch.set_num_threads(1)
    case = replace(CASES[args.case], steps=args.steps)
    given = {"scheme": "smofi", "cut": case.cut, "batch_size": case.batch, "local_epochs": 1, "loss": case.loss}
    rounds = cl.rounds(case.build(), case.data(), rounds=3, threads=1, backend="loop", **given)
    next(rounds), next(rounds)  # memory comes from the system during the first ones
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        next(rounds)
    found = sorted(seen.key_averages(), key=lambda one: -one.self_cpu_time_total)
    total = sum(one.self_cpu_time_total for one in found)
    kernels = sum(one.self_cpu_time_total for one in found if any(word in one.key for word in MODELS))
    print(f"{100 * kernels / total:.0f} % in the model's own kernels: {', '.join(MODELS)}")
    for one in found[:15]:
        print(f"{100 * one.self_cpu_time_total / total:6.1f} %  {one.key}, {one.count} times")


if __name__ == "__main__":
    main()
