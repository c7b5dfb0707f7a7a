"""Adapters in every runtime: threads, ranks and the network give the bits of the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer as cl
from cutlayer.core.sealed import digest
from cutlayer.processes.ranks import join, leave
from tests.hf import nets
from tests.hf.test_adapters import adapters, texts
from tests.network.harness import play
from tests.processes.test_ranks import launched

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]
SMALL: dict[str, Any] = {"rounds": 2, "batch_size": 4, "local_epochs": 1, "loss": cl.next_token, "backend": "loop"}
CASES: dict[str, dict[str, Any]] = {
    "smofi": {"scheme": "smofi", "cut": 1},
    "sflv2": {"scheme": "sflv2", "cut": 1},
    "cyclesfl": {"scheme": "cyclesfl", "cut": 1},
    "labels that stay": {"scheme": "smofi", "cut": 1, "labels": "stay"},
    "frozen front": {"scheme": "smofi", "cut": 0},
    "frozen front, one server": {"scheme": "sflv2", "cut": 0},
    "kept": {"scheme": "psl", "cut": 1},
    "joint norm": {"scheme": "smofi", "cut": 1, "clip": cl.Clip(0.1, norm="joint")},
    "short base": {"scheme": "smofi", "cut": 1},
}


def model_of(case: str) -> Any:
    base = nets.tiny()
    return nets.with_lora(base.to(torch.bfloat16) if case == "short base" else base)


def data(case: str) -> list[Any]:
    """Rows of four clients; where labels stay, with masks."""
    found = texts(4)
    if case != "labels that stay":
        return found
    masks = [torch.ones_like(x) for x, _ in found]
    for mask in masks:
        mask[::2, 5:] = 0
    return [
        ({"input_ids": x, "attention_mask": mask}, y.masked_fill(mask == 0, -100))
        for (x, y), mask in zip(found, masks, strict=True)
    ]


def trained(case: str, **more: Any) -> tuple[str, list[tuple[int, int]]]:
    """A digest of the adapters, and the bytes of each round."""
    result = cl.train(model_of(case), data(case), **{**SMALL, **CASES[case], **more})
    return digest(adapters(result.model)), [(r.bytes_up, r.bytes_down) for r in result.history]


@pytest.mark.parametrize("case", CASES)
def test_threads(case: str) -> None:
    assert trained(case, threads=2) == trained(case, threads=1)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_network(tmp_path: Path, case: str, memory: bool) -> None:
    if not memory and case not in ("smofi", "frozen front"):
        pytest.skip("over real sockets two are enough")
    if case == "kept":
        pytest.skip("clients keep their fronts to themselves")
    rows = data(case)
    model = cl.blocks(model_of(case), example=rows[0][0])
    played = play(tmp_path, rows, model=model, memory=memory, **{**SMALL, **CASES[case]})
    expected, sent = trained(case)
    assert digest(adapters(played.result.model)) == expected
    assert [(r.bytes_up, r.bytes_down) for r in played.result.history] == sent


def as_rank(file: str) -> None:
    found = {case: trained(case, ranks="ordered") for case in CASES}
    if join("ordered").root:
        Path(file).write_text(json.dumps(found))
    leave()


def test_two_ranks(tmp_path: Path) -> None:
    nets.transformers()
    with launched(2, as_rank, str(tmp_path / "found.json")) as ranks:
        for rank in ranks:
            assert rank.wait() == 0, rank.err[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    for case in CASES:
        sha, sent = trained(case)
        assert found[case] == [sha, [list(both) for both in sent]], case


def test_a_client_with_another_base_is_told_so(tmp_path: Path) -> None:
    rows = texts(2)
    model = cl.blocks(model_of("smofi"))

    def stranger(server: Any) -> Any:
        from tests.network.harness import in_memory

        other = nets.with_lora(nets.tiny(initializer_range=0.3))
        with pytest.raises(cl.ContractError, match=r"its frozen weights have the digest \w+, the server's \w+"):
            in_memory(server, "ward-1", rows[1], cl.blocks(other), tmp_path, SMALL)
        return in_memory(server, "ward-1", rows[1], model, tmp_path, SMALL)

    played = play(
        tmp_path,
        rows,
        net={"min_clients": 2},
        model=model,
        memory=True,
        guests={1: stranger},
        scheme="smofi",
        cut=1,
        **SMALL,
    )
    assert len(played.result.history) == 2
