"""Trainings from Python that write into a folder: killed, started again, refused where they would be another run."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.errors import ContractError, StoreError
from cutlayer.experiment import program
from cutlayer.network.client.loop import Joined
from tests.api import programs
from tests.api.programs import ARGUMENTS, ROUNDS, SCHEMES, clients, net, rows
from tests.forks import forked
from tests.network.test_restart import free_port

SMALL: dict[str, Any] = {"cut": 1, "rounds": 3, "batch_size": 8, "local_epochs": 1, "test": rows(20)}


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def lines(out: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    return [{**line, "seconds": 0} for line in found]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_killed_training_goes_on(tmp_path: Path, scheme: str) -> None:
    whole = cl.train(net(), clients(), test=rows(20), out=tmp_path / "whole", **ARGUMENTS, **SCHEMES[scheme])
    out = tmp_path / "killed"
    for die in (("line", 2), ("checkpoint", 4)):
        with forked(programs.train, str(out), scheme, die) as process:
            assert process.wait() == -9, process.err
    again = cl.train(net(), clients(), test=rows(20), out=out, resume="must", **ARGUMENTS, **SCHEMES[scheme])
    assert same(again.model, whole.model) and len(again.history) == ROUNDS
    assert lines(out) == lines(tmp_path / "whole")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert (out / "report.html").exists()
    for j, model in enumerate(whole.clients):
        assert same(again.clients[j], model)


def test_a_killed_server_goes_on(tmp_path: Path) -> None:
    arguments = {**ARGUMENTS, **SCHEMES["smofi"]}
    mine = [rows(40), rows(30)]
    whole = cl.train(net(), mine, test=rows(20), backend="loop", **arguments)
    port, ended = free_port(), {}

    def client(j: int) -> None:
        try:
            ended[j] = cl.join(
                f"127.0.0.1:{port}", mine[j], model=net(), name=f"c{j}", out=tmp_path / "c", patience=250
            )
        except BaseException as error:  # told to the test
            ended[j] = error

    threads = [threading.Thread(target=client, args=(j,), daemon=True) for j in range(2)]
    for thread in threads:
        thread.start()
    out = tmp_path / "served"
    for die, code in ((("line", 2), -9), (("checkpoint", 3), -9), (None, 0)):
        with forked(programs.serve, str(out), port, die) as process:
            assert process.wait() == code, process.err
    for thread in threads:
        thread.join(60)
    assert all(isinstance(one, Joined) for one in ended.values()), ended
    assert same(cl.load(out / "model.safetensors", net()), whole.model)
    assert cl.open(out).status == "complete" and (out / "report.html").exists()


def test_rounds_that_are_left_and_taken_up_again(tmp_path: Path) -> None:
    whole = cl.train(net(), clients(), **SMALL)
    run = cl.rounds(net(), clients(), out=tmp_path / "x", **SMALL)
    assert next(run).n == 1
    with pytest.raises(StoreError, match="another process is training here"):
        cl.rounds(net(), clients(), out=tmp_path / "x", **SMALL)
    run.close()
    run = cl.rounds(net(), clients(), out=tmp_path / "x", **SMALL)
    assert [record.n for record in run.history] == [1]
    assert next(run).n == 2
    del run  # nobody holds it: the folder is free
    other = net()
    with torch.no_grad():
        next(other.parameters()).zero_()  # the first call's weights count
    again = cl.train(other, clients(), out=tmp_path / "x", **SMALL)
    assert same(again.model, whole.model) and [record.n for record in again.history] == [1, 2, 3]
    finished = cl.train(net(), clients(), out=tmp_path / "x", **SMALL)
    assert same(finished.model, whole.model)


def test_an_interrupted_call_lets_go_of_the_folder(tmp_path: Path) -> None:
    def metric(out: Tensor, y: Tensor) -> float:
        if flag:
            raise KeyboardInterrupt
        return 0.5

    flag = [1]
    with pytest.raises(KeyboardInterrupt) as kept:
        cl.train(net(), clients(), out=tmp_path / "x", metric=cl.named(metric, "half"), **SMALL)
    flag.clear()
    result = cl.train(net(), clients(), out=tmp_path / "x", metric=cl.named(metric, "half"), **SMALL)
    assert len(result.history) == 3 and result.history[0].metric == 0.5 and kept.value is not None


class Weighted(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.register_buffer("weight", torch.full((3,), weight))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out, y, self.weight)


def faster(n: int) -> float:
    return 0.8**n


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rounds": ({}, {"rounds": 4}, "rounds was 3, is 4"),
    "scheme": ({}, {"scheme": cl.SMoFi(alpha=-0.3)}, "scheme.alpha was -0.1, is -0.3"),
    "another scheme": ({}, {"scheme": "fedavg"}, "scheme.name was 'smofi', is 'fedavg'"),
    "a schedule": (
        {"optimizer": cl.SGD(decay=programs.slower)},
        {"optimizer": cl.SGD(decay=faster)},
        "optimizer.decay",
    ),
    "a lambda": (
        {"optimizer": cl.SGD(decay=lambda n: 0.9**n)},
        {"optimizer": cl.SGD(decay=lambda n: 0.8**n)},
        "optimizer.decay",
    ),
    "a loss": ({}, {"loss": Weighted(1.0)}, "loss was 'torch.nn.functional.cross_entropy', is"),
    "the loss's numbers": ({"loss": Weighted(1.0)}, {"loss": Weighted(2.0)}, "loss was"),
    "a local rule": ({}, {"local": (cl.FedProx(0.1), cl.FedNAR())}, "local was not there"),
    "the machine's batches": ({}, {"batch_size": 4}, "batch_size was 8, is 4"),
    "the clock": ({}, {"clock": cl.Clock(kappa=3)}, "kappa was 100.0, is 3"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_other_arguments_are_refused(tmp_path: Path, case: str) -> None:
    before, after, said = DIFFERENT[case]
    run = cl.rounds(net(), clients(), out=tmp_path / "x", **{**SMALL, **before})
    next(run)
    run.close()
    was = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(ContractError) as error:
        cl.train(net(), clients(), out=tmp_path / "x", **{**SMALL, **before, **after})
    assert said in str(error.value) and "begun with other arguments" in str(error.value)
    assert all(path.read_bytes() == content for path, content in was.items())
    assert len(cl.train(net(), clients(), out=tmp_path / "x", **{**SMALL, **before}).history) == 3


def test_what_does_not_count_may_change(tmp_path: Path) -> None:
    next(cl.rounds(net(), clients(), out=tmp_path / "x", **SMALL))
    again = cl.train(net(), clients(), out=tmp_path / "x", threads=1, kept_memory=1.0, checkpoint_every=2, **SMALL)
    assert len(again.history) == 3


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, x: Tensor, noisy: bool = False) -> None:
        self.x, self.noisy = x, noisy

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i] + (torch.rand(()) if self.noisy else 0), i % 3


@pytest.mark.parametrize("kind", ["tensors", "dataset", "test rows"])
def test_other_data_are_refused(tmp_path: Path, kind: str) -> None:
    x, y = rows(24)
    other = x.clone()
    other[-1, -1] += 1

    def given(x: Tensor) -> dict[str, Any]:
        held = [Rows(x)] if kind == "dataset" else [(x, y)]
        return {"clients": held} if kind != "test rows" else {"clients": [rows(24)], "test": (x, y)}

    next(cl.rounds(net(), out=tmp_path / "x", **{**SMALL, **given(x)}))
    with pytest.raises(StoreError, match="its data, or which client holds which rows, have changed"):
        cl.train(net(), out=tmp_path / "x", **{**SMALL, **given(other)})
    assert len(cl.train(net(), out=tmp_path / "x", **{**SMALL, **given(x)}).history) == 3


def test_a_dataset_that_changes_its_rows_is_known_by_its_length(tmp_path: Path) -> None:
    import random

    class Noisy(Rows):
        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            return self.x[i] + random.random(), i % 3

    next(cl.rounds(net(), [Noisy(rows(24)[0])], out=tmp_path / "x", **SMALL))
    assert len(cl.train(net(), [Noisy(rows(24)[0])], out=tmp_path / "x", **SMALL).history) == 3
    with pytest.raises(StoreError, match="have changed"):
        cl.train(net(), [Noisy(rows(25)[0])], out=tmp_path / "x", **SMALL)


def test_another_model_is_refused(tmp_path: Path) -> None:
    next(cl.rounds(net(), clients(), out=tmp_path / "x", **SMALL))
    wide = nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(
        ContractError, match=r"where that has 0.weight \(8, 4\) float32, this one has 0.weight \(9, 4\)"
    ):
        cl.train(wide, clients(), out=tmp_path / "x", **SMALL)
    with pytest.raises(ContractError, match=r"where that has 3\.weight .* this one has 2\.weight"):
        cl.train(nn.Sequential(*net()[:2], nn.Linear(8, 3)), clients(), out=tmp_path / "x", **SMALL)  # type: ignore[index]


def test_resume_says_what_is_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x"
    with pytest.raises(StoreError, match="no run to resume in it; expected one, or resume='auto'"):
        cl.train(net(), clients(), out=out, resume="must", **SMALL)
    assert not out.exists()
    cl.train(net(), clients(), out=out, resume="never", **SMALL)
    with pytest.raises(StoreError, match="already holds a run; expected another folder, or resume='auto'"):
        cl.train(net(), clients(), out=out, resume="never", **SMALL)
    with pytest.raises(ContractError, match="resume = 'always': expected 'auto', 'never' or 'must'"):
        cl.train(net(), clients(), out=out, resume="always", **SMALL)  # type: ignore[arg-type]
    assert main(["resume", str(out)]) == 2
    assert "start that program again, and it continues the run" in capsys.readouterr().err
    for command in (["report", str(out), "--json"], ["clock", str(out), "--profile", "lte", "--json"]):
        assert main(command) == 0
    assert (
        main(
            [
                *[
                    "run",
                    "--model",
                    "mlp",
                    "--clients",
                    "4",
                    "--rounds",
                    "1",
                    "--local-epochs",
                    "1",
                    "--quiet",
                    "--out",
                ],
                str(tmp_path / "y"),
            ]
        )
        == 0
    )
    with pytest.raises(StoreError, match="holds a run of the command line: `cutlayer resume"):
        cl.train(net(), clients(), out=tmp_path / "y", **SMALL)


def test_devices_of_the_callers_own_are_kept_for_the_clock(tmp_path: Path) -> None:
    devices = [cl.Device(0.1, 100.0), cl.Device(0.2, 100.0), cl.Device(0.3, 50.0)]
    result = cl.train(net(), clients(), out=tmp_path / "x", profile=devices, **SMALL)
    from cutlayer.report.retime import WhatIf, retimed

    again = retimed(tmp_path / "x", result.history, WhatIf())
    assert [r.sim_seconds for r in again] == [r.sim_seconds for r in result.history]


def test_a_run_read_back(tmp_path: Path) -> None:
    out = tmp_path / "x"
    run = cl.rounds(net(), clients(), out=out, **SMALL)
    next(run)
    folder = cl.open(out)
    assert folder.status == "unfinished" and repr(folder).startswith(
        f"RunFolder {str(out)!r}: unfinished, 1 of 3 rounds"
    )
    assert same(folder.model(net), run.model) and folder.history == run.history and folder.config["rounds"] == 3
    with pytest.raises(StoreError, match="since the run is unfinished; model= reads a checkpoint"):
        folder.model()
    result_model = [*run] and run.model
    folder = cl.open(out)
    assert folder.status == "complete" and same(folder.model(net()), result_model)
    assert [row["n"] for row in folder.table()] == [1, 2, 3] and "clients" not in folder.table()[0]
    with pytest.raises(
        StoreError, match=r"holds weights of torch.nn.modules.container.Sequential, a model of your own"
    ):
        cl.load(out / "model.safetensors")
    with pytest.raises(StoreError, match="no such folder"):
        cl.open(tmp_path / "nowhere")


@pytest.mark.extras
def test_history_as_a_table_of_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed (make test-extras has it)")
    cl.train(net(), clients(), out=tmp_path / "x", **SMALL)
    table = cl.open(tmp_path / "x").to_pandas()
    assert isinstance(table, pandas.DataFrame) and list(table.index) == [1, 2, 3]
    assert table.accuracy.notna().all()


CALLABLES: list[tuple[Callable[..., Any], Callable[..., Any], bool]] = [
    (programs.slower, programs.slower, True),
    (programs.slower, faster, False),
    (functools.partial(pow, 0.9), functools.partial(pow, 0.9), True),
    (functools.partial(pow, 0.9), functools.partial(pow, 0.8), False),
    (lambda n: 0.9**n, lambda n: 0.9**n, True),
    (lambda n: [0.9**i for i in range(n)], lambda n: [0.8**i for i in range(n)], False),
    (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(), True),
    (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), False),
    (cl.named(programs.slower, "slow"), cl.named(faster, "slow"), True),
    (cl.named(faster, "slow"), cl.named(faster, "slower"), False),
    (nn.functional.mse_loss, nn.functional.mse_loss, True),
    (Weighted, Weighted, True),
    (Weighted, Rows, False),
]


@pytest.mark.parametrize(("one", "other", "alike"), CALLABLES)
def test_functions_are_known_by_name_and_source(one: Any, other: Any, alike: bool) -> None:
    assert (program.function(one) == program.function(other)) == alike


def test_a_function_is_known_by_what_it_closes_over() -> None:
    def power(base: float) -> Callable[[int], float]:
        return lambda n: base**n

    assert program.function(power(0.9)) == program.function(power(0.9)) != program.function(power(0.8))


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    import numpy as np

    given = {**SMALL, "rounds": np.int64(3), "seed": np.int64(2), "noise": np.float64(0.1)}
    next(cl.rounds(net(), clients(), out=tmp_path / "x", **given))
    assert cl.open(tmp_path / "x").config["seed"] == 2
    with pytest.raises(ContractError, match="seed was 2, is 5"):
        cl.train(net(), clients(), out=tmp_path / "x", **{**given, "seed": np.int64(5)})
    assert len(cl.train(net(), clients(), out=tmp_path / "x", **{**SMALL, "seed": 2, "noise": 0.1}).history) == 3


@pytest.mark.parametrize("file", ["model_profile.json", "config.toml", "journal.jsonl"])
def test_a_damaged_file_is_mended(tmp_path: Path, file: str) -> None:
    """By the same call as after a crash."""
    whole = cl.train(net(), clients(), **SMALL)
    run = cl.rounds(net(), clients(), out=tmp_path / "x", **SMALL)
    next(run), next(run)
    run.close()
    path = tmp_path / "x" / file
    path.write_bytes(b"\x00" + path.read_bytes()[1:])
    with pytest.warns(UserWarning, match="damaged|not readable|written again|read from its copy"):
        again = cl.train(net(), clients(), out=tmp_path / "x", **SMALL)
    assert same(again.model, whole.model) and len(again.history) == 3
