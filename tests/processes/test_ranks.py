"""Several processes train what one would: to the bit in order, to rounding when fast; and none of them is waited for
in vain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.core.group import ProcessGroup
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.run_directory import read_summary
from cutlayer.processes.ranks import refuse_shared
from cutlayer.registry import SCHEMES
from tests.forks import Forked, forked
from tests.network.test_restart import free_port
from tests.processes import harness

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@contextmanager
def launched(size: int, job: Callable[..., Any], *arguments: Any) -> Iterator[list[Forked]]:
    """Ranks as torchrun would start them, without loading torch again."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    with ExitStack() as stack:
        places = [{**env, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        yield [stack.enter_context(forked(job, *arguments, env=place)) for place in places]


def played(tmp_path: Path, size: int, *names: str) -> dict[str, Any]:
    file = tmp_path / "found.json"
    with launched(size, harness.main, str(file), *names) as ranks:
        for rank in ranks:
            assert rank.wait() == 0, rank.err[-2000:]
    found: dict[str, Any] = json.loads(file.read_text())
    return found


NAMES = [name for name, _ in harness.cases()]
PARTS = 5  # so that no part takes long, however busy the machine is


@pytest.mark.parametrize("part", range(PARTS))
def test_two_ranks_and_one(tmp_path: Path, part: int) -> None:
    """Every scheme in both protocols: in order, the same bits in weights, in what is kept, in the whole record."""
    assert {*SCHEMES} <= {*NAMES}
    names = NAMES[part::PARTS]
    found, alone = played(tmp_path, 2, *names)["ordered"], harness.played(names, None)
    assert list(found) == list(alone) == names
    for name, there in found.items():
        assert there == alone[name], name


def test_two_ranks_that_are_fast(tmp_path: Path) -> None:
    """Fast sums, in float32 and over a whole round, differ by rounding alone."""
    found = played(tmp_path, 2, harness.FAST)["fast"]
    for name, w in harness.weights(None).items():
        assert max(abs(a - b) for a, b in zip(found[name], w, strict=True)) <= 1e-6, name


def test_three_ranks_and_one(tmp_path: Path) -> None:
    """Some rounds leave ranks idle."""
    names = ("smofi few", "mergesfl few", "psl cyclesl", "smofi stacked")
    assert played(tmp_path, 3, *names)["ordered"] == harness.played(names, None)


def test_a_rank_that_dies_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    """kill -9 of a rank under torchrun: a message, no hang; resumed by one process, the bits of a run that nothing
    happened to."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    flags = ["--rounds", "12", "--train-rows", "300", "--clients", "12", "--local-epochs", "2", "--quiet", "--out"]
    command = [*TORCHRUN, "2", "-m", "cutlayer", "run", *flags, str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as running:
        journal = out / "journal.jsonl"
        while not journal.exists() or journal.read_text().count("\n") < 2:
            assert running.poll() is None
            time.sleep(0.01)
        os.kill(_worker(running.pid), signal.SIGKILL)
        _, said = running.communicate()
    assert running.returncode != 0
    assert f"`cutlayer resume {out}` goes on from the last round" in said
    done = len(journal.read_text().splitlines())
    assert 2 <= done < 12
    again = len(list(Experiment.resume(out))) - (12 - done)
    assert again in (0, 1)  # the root may have died between a round's line in the journal and its checkpoint
    assert main(["run", *flags, str(whole)]) == 0
    summaries = [read_summary(folder) for folder in (out, whole)]
    assert summaries[0] is not None and summaries[1] is not None
    assert summaries[0]["sha256"] == summaries[1]["sha256"]


def test_a_rank_that_is_stopped_does_not_hold_the_others_for_ever(tmp_path: Path) -> None:
    """SIGSTOP of a rank: the other one says so and ends; what it leaves can be resumed."""
    out = tmp_path / "run"
    flags = ["--rounds", "400", "--train-rows", "300", "--clients", "12", "--local-epochs", "2", "--quiet", "--out"]
    os.environ["CUTLAYER_RANKS_TIMEOUT"] = "4"
    try:
        with launched(2, main, ["run", *flags, str(out)]) as (first, second):
            journal = out / "journal.jsonl"
            while not journal.exists() or journal.read_text().count("\n") < 2:
                assert not first.ended, first.err
                time.sleep(0.01)
            os.kill(second.pid, signal.SIGSTOP)
            try:
                assert first.wait() == 2
            finally:
                os.kill(second.pid, signal.SIGCONT)
            assert "`cutlayer resume" in first.err, first.err
            assert second.wait() != 0
    finally:
        del os.environ["CUTLAYER_RANKS_TIMEOUT"]
    assert Experiment.resume(out).run.state.n >= 2


def _worker(launcher: int) -> int:
    """The last of the processes that torchrun started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return int(children[-1])


def test_what_is_wrong_is_said_once_and_by_all(tmp_path: Path) -> None:
    command = ["run", "--scheme", "smofi", "--memory-limit", "0.01", "--out", str(tmp_path / "x")]
    with launched(2, main, command) as ranks:
        assert all(rank.wait() != 0 for rank in ranks)
        said = "".join(rank.err for rank in ranks)
    assert said.count("memory_limit = 0.01: a round of 15 clients") >= 1
    assert not (tmp_path / "x").exists()


def test_an_error_of_a_client_on_another_rank_names_it_on_all(tmp_path: Path) -> None:
    """Where the root plays the round, the other ranks send it their errors, and all end with the same one."""
    file = tmp_path / "said"
    with launched(2, harness.fails, str(file), "sflv2") as ranks:
        for rank in ranks:
            assert rank.wait() == 0, rank.err[-2000:]
    for rank_number in range(2):
        said = Path(f"{file}.{rank_number}").read_text()
        assert said.startswith("ContractError: round 1, client 3, step "), said
        assert said.endswith("OSError: the disk is gone"), said


@pytest.mark.parametrize("scheme", ["smofi", "cyclesfl"])
def test_ranks_that_would_stack_differently_are_refused(tmp_path: Path, scheme: str) -> None:
    """Their shares of a round would overlap."""
    file = tmp_path / "said"
    with launched(2, harness.stacks, str(file), scheme) as ranks:
        for rank in ranks:
            assert rank.wait() == 0, rank.err[-2000:]
    words = "ContractError: stack: the ranks chose 2, 3 clients in one graph; expected the same number on all of them"
    assert all(Path(f"{file}.{number}").read_text().startswith(words) for number in range(2))


class Told(ProcessGroup):
    """Four ranks on two machines; what each of them says is known."""

    size = 4

    def __init__(self, *places: str) -> None:
        self.places = places

    def everyones(self, words: Any) -> list[Any]:
        return list(self.places)


def test_a_device_that_two_ranks_of_a_machine_would_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutlayer.processes.ranks.identity", str)
    device = torch.device("cuda:0")
    refuse_shared(Told("cuda:0 of a", "cuda:1 of a", "cuda:0 of b", "cuda:1 of b"), device)
    refuse_shared(Told("cpu of a", "cpu of a", "cpu of b", "cpu of b"), torch.device("cpu"))
    words = "device = 'cuda:0': expected one device for each rank of a machine, and this is one for the ranks 1 and 3"
    with pytest.raises(cl.ContractError, match=words):
        refuse_shared(Told("cuda:0 of a", "cuda:0 of b", "cuda:1 of a", "cuda:0 of b"), device)
