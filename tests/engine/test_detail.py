"""A look inside a round: a row for each client, right in every column, and without changing what is computed."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.errors import Restored
from tests.clients.faulty import Fault, FaultyCohort
from tests.equal.naive import difference, small_clients, small_model

SIZES = (5, 9, 13, 22, 3)  # the last has no full batch
GIVEN: dict[str, Any] = {"cut": 1, "rounds": 2, "batch_size": 4, "local_epochs": 1, "shuffle": False}


def looked(**more: Any) -> list[cl.Round]:
    given = GIVEN | more
    result = cl.train(small_model(), small_clients(SIZES), detail=True, **given)
    plain = cl.train(small_model(), small_clients(SIZES), **given)
    assert difference(result.model, plain.model) == 0, "looking changes nothing"
    assert [dataclasses.replace(r, seconds=0.0) for r in result.history] == [
        dataclasses.replace(r, seconds=0.0) for r in plain.history
    ]
    assert all(record.detail is None for record in plain.history)
    return result.history


@pytest.mark.parametrize("backend", ["loop", "stacked"])
@pytest.mark.parametrize("scheme", ["smofi", "sflv1", "sflv2", "mergesfl", "psl", "cyclesfl", "cyclessl"])
def test_columns_agree_with_the_record(scheme: str, backend: str) -> None:
    for record in looked(scheme=scheme, backend=backend):
        detail = record.detail
        assert detail is not None and detail["client"] == [0, 1, 2, 3, 4]
        assert sum(detail["steps"]) == record.steps and sum(detail["samples"]) == record.samples
        if scheme != "mergesfl":  # it skips nobody
            assert detail["steps"] == [1, 2, 3, 5, 0]
            assert detail["fault"] == [None, None, None, None, "no full batch"]
        losses = [loss for loss in detail["loss"] if loss is not None]
        pairs = zip(detail["loss"], detail["steps"], strict=True)
        weighted = sum(loss * steps for loss, steps in pairs if loss is not None)
        assert losses and weighted / record.steps == pytest.approx(record.train_loss)
        for side, drift in (("drift_client", record.drift_client), ("drift_server", record.drift_server)):
            each = [value for value in detail[side] if value is not None]
            assert drift == pytest.approx(sum(each) / len(each) if each else 0.0)
        assert any(detail["cosine"]) == (scheme == "smofi")


@pytest.mark.parametrize("optimizer", [cl.SGD(lr=0.1, momentum=0.9), cl.Adam(lr=0.01)])
def test_the_cosine_is_that_of_the_momenta(optimizer: Any) -> None:
    """One wave of two clients: m_j is proportional to g_j (by hand), and m_bar to their sum."""
    clients = small_clients((4, 4))
    given = GIVEN | {"rounds": 1}
    (record,) = cl.train(small_model(), clients, optimizer=optimizer, detail=True, **given).history
    gradients = []
    for x, y in clients:
        model = copy.deepcopy(small_model())
        loss = torch.nn.functional.cross_entropy(model(x), y)
        back = list(model[2:].parameters())
        lam = optimizer.weight_decay
        found = zip(back, torch.autograd.grad(loss, back), strict=True)
        gradients.append(torch.cat([(g + lam * p.detach()).flatten() for p, g in found]))
    total = gradients[0] + gradients[1]
    expected = [float(g @ total / g.norm() / total.norm()) for g in gradients]
    assert record.detail is not None and record.detail["cosine"] == pytest.approx(expected)
    assert max(expected) < 0.999


def test_a_lost_client_has_its_steps_and_a_fault() -> None:
    plain = cl.rounds(small_model(), small_clients(SIZES), detail=True, **GIVEN)
    cohort = FaultyCohort(plain.setup.cohort, [Fault("drop", 1, 3, 2)])
    run = cl.Run(small_model(), dataclasses.replace(plain.setup, cohort=cohort), plain.state, None)
    detail = next(run).detail
    assert detail is not None
    assert (detail["steps"][3], detail["fault"][3], detail["drift_client"][3]) == (2, "lost", None)


def test_a_scheme_notes_figures_of_its_own() -> None:
    class Noting:
        traits = cl.SFLV1().traits

        def open(self, server: Any, clients: Any) -> Any:
            for j in clients if server.watched else ():
                server.note("double", j, 2.0 * j)
                server.note("double", j, 4.0 * j)
            return cl.SFLV1().open(server, clients)

    detail = cl.train(small_model(), small_clients(SIZES), scheme=Noting(), detail=True, **GIVEN).history[0].detail
    assert detail is not None and detail["double"] == [0.0, 3.0, 6.0, 9.0, None]


def test_the_side_file_of_an_interrupted_run(tmp_path: Path) -> None:
    given = GIVEN | {"rounds": 4, "checkpoint_every": 2}

    def begun(out: Path, **more: Any) -> cl.Run:
        return cl.rounds(small_model(), small_clients(SIZES), out=out, **given | more)

    whole = begun(tmp_path / "whole", detail=True)
    for record in whole:
        assert record.detail is not None
    broken = begun(tmp_path / "broken", detail=True)
    for _ in range(3):
        next(broken)
    broken.close()
    file = tmp_path / "broken" / "detail.jsonl"
    assert len(file.read_bytes().splitlines()) == 3
    file.write_bytes(file.read_bytes() + b'{"n": 4, "cli')
    list(begun(tmp_path / "broken", detail=True))  # goes on after round 2, the last checkpoint
    one, other = (cl.open(tmp_path / name).detail() for name in ("whole", "broken"))
    assert one == other and one["n"] == [n for n in range(1, 5) for _ in SIZES]
    assert math.isfinite(sum(value for value in one["loss"] if value is not None))
    for damage in (lambda line: line.replace(b'"n": 2', b'"n": 9'), lambda line: line[:40]):
        lines = file.read_bytes().splitlines()
        lines[1] = damage(lines[1])
        file.write_bytes(b"\n".join(lines) + b"\n")
        with pytest.raises(cl.StoreError, match=r"detail\.jsonl, line 2: damaged"):
            cl.open(tmp_path / "broken").detail()
    with pytest.warns(Restored, match=r"detail\.jsonl, line 2: damaged"):
        assert list(begun(tmp_path / "broken", detail=True)) == []
    assert set(cl.open(tmp_path / "broken").detail()["n"]) == {1, 3, 4}
    list(begun(tmp_path / "without"))
    assert cl.open(tmp_path / "without").detail() == {"n": []}
    assert list(begun(tmp_path / "without", detail=True)) == [], "it is the same run, looked at or not"
    assert "detail" not in (tmp_path / "whole" / "journal.jsonl").read_text()


def test_a_run_that_is_overwritten_leaves_nothing_behind(tmp_path: Path) -> None:
    flags = [
        "run",
        "--clients",
        "3",
        "--train-rows",
        "60",
        "--local-epochs",
        "1",
        "--quiet",
        "--out",
        str(tmp_path / "x"),
    ]
    assert main([*flags, "--rounds", "2", "--detail"]) == 0
    assert set(cl.open(tmp_path / "x").detail()["n"]) == {1, 2}
    assert main([*flags, "--rounds", "1", "--overwrite", "--detail"]) == 0
    assert cl.open(tmp_path / "x").detail()["n"] == [1, 1, 1]
    assert main([*flags, "--rounds", "1", "--overwrite"]) == 0
    assert cl.open(tmp_path / "x").detail() == {"n": []}
