"""Why a first round is slower than later ones: seconds in program and system, and page faults, in one thread.

python experiments/cold_start.py          ResNet-18, 20 clients, two steps of 32 images each; two minutes
"""

from __future__ import annotations

import argparse
import copy
import resource
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

import cutlayer as cl
from cutlayer.core import heap
from cutlayer.models import resnet18

STEPS, BATCH = 2, 32


def told(what: str, play: Callable[[], object]) -> None:
    """Play, and print what that took."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    play()
    after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - begin
    program, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    faults = after.ru_minflt - before.ru_minflt
    print(f"{what:20} {seconds:6.2f} s: {program:6.2f} in the program, {system:5.2f} in the system, {faults:9,} faults")


def plain(model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
    """Centralised training of the same samples."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

    def play() -> None:
        for x, y in data:
            for some, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
                optimizer.zero_grad()
                functional.cross_entropy(model(some), labels).backward()
                optimizer.step()

    return play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    args = parser.parse_args()
    heap.keep()
    torch.set_num_threads(1)
    rows = STEPS * BATCH
    data = [(torch.randn(rows, 3, 32, 32), torch.randint(0, 10, (rows,))) for _ in range(args.clients)]
    model = resnet18((3, 32, 32), 10)
    central = plain(model, data)
    told("plain", central)
    told("plain, again", central)
    run = cl.rounds(model, data, rounds=3, threads=1, scheme="smofi", cut=2, batch_size=BATCH, local_epochs=1)
    for n in range(1, 4):
        told(f"round {n}", lambda: next(run))


if __name__ == "__main__":
    main()
