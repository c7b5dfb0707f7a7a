"""Eight trainings side by side in threads, each of something else: each ends with the bits it has alone."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import torch

import cutlayer as cl
from tests.engine.test_side_by_side import X, Y, clients, network, side_by_side
from tests.nightly.runs import POINTS

TOGETHER = 8


def play(seed: int, folder: Path) -> int:
    dice = random.Random(seed)
    jobs = [drawn(dice) for _ in range(TOGETHER)]
    alone = [train(job) for job in jobs]
    over = threading.Event()

    def caller() -> None:
        while not over.is_set():
            torch.manual_seed(int(torch.randint(0, 99, ())))
            torch.rand(3)

    beside = threading.Thread(target=caller)
    beside.start()
    try:
        together = side_by_side([lambda job=job: train(job) for job in jobs])
    finally:
        over.set()
        beside.join()
    wrong = [(job, found) for job, found, right in zip(jobs, together, alone, strict=True) if found != right]
    assert not wrong, f"{[(job, found if isinstance(found, Exception) else 'other bits') for job, found in wrong]}"
    return TOGETHER


def drawn(dice: random.Random) -> dict[str, Any]:
    scheme, protocol = dice.choice(POINTS)
    return {
        "drawing": dice.random() < 0.5,
        "scheme": scheme,
        "protocol": protocol,
        "backend": dice.choice(("loop", "auto")),
        "seed": dice.randrange(1000),
        "threads": dice.choice((1, 2)),
        "optimizer": dice.choice((cl.SGD(lr=0.05), cl.Adam(lr=0.01))),
        "participation": dice.choice((1.0, 0.5)),
    }


def train(job: dict[str, Any]) -> list[bytes]:
    """The weights and the losses."""
    given = {key: value for key, value in job.items() if key != "drawing"}
    tests = [(X[:9], Y[:9])] * 4 if job["protocol"] == "cyclesl" else (X, Y)
    result = cl.train(
        network(job["drawing"]), clients(), test=tests, cut=0, rounds=2, batch_size=4, local_epochs=1, **given
    )
    weights = [t.numpy().tobytes() for t in result.model.state_dict().values()]
    return weights + [str((record.loss, record.train_loss)).encode() for record in result.history]
