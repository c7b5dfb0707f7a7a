"""What clients keep: it grows with the clients seen, goes to disk past a limit and comes back as it was."""

from __future__ import annotations

import copy
import gc
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.core import files
from cutlayer.engine import spill
from cutlayer.engine.spill import OwnedState, SpillCache
from cutlayer.optim.memory import Moments
from cutlayer.registry import SCHEMES

KEEPERS = ("psl", "sglr", "cyclepsl", "cyclesglr")
SIZES = (8, 12, 17, 9, 24, 3, 11, 8)  # the sixth has less than one batch
FRONT = 4 * (6 * 5 + 5)  # bytes of the front's weights


def model() -> nn.Sequential:
    torch.default_generator.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 3)))


def normed() -> nn.Sequential:
    torch.default_generator.manual_seed(2)
    return nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), nn.Sequential(nn.Tanh(), nn.Linear(5, 3)))


def clients() -> list[tuple[Tensor, Tensor]]:
    torch.default_generator.manual_seed(1)
    return [(torch.randn(n, 6) + j, torch.randint(0, 3, (n,))) for j, n in enumerate(SIZES)]


def begun(scheme: Any, **changes: Any) -> cl.Run:
    given: dict[str, Any] = {"rounds": 6, "participation": 3, "batch_size": 4, "local_epochs": 1, **changes}
    return cl.rounds(given.pop("model", model)(), clients(), scheme=scheme, **given)


def finished(scheme: Any, **changes: Any) -> cl.Run:
    run = begun(scheme, **changes)
    assert len(list(run)) == 6
    return run


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go meanwhile."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def spilled(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# ---- What is kept, and how much of it ----------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", KEEPERS)
def test_memory_grows_with_the_clients_ever_seen(scheme: str) -> None:
    run, seen, turns = begun(scheme, kept_memory=None), set[int](), 0
    for record in run:
        seen |= set(record.clients)
        turns += len(record.clients)
        assert set(run.state.owned) == {f"client/{j}" for j in seen}
        assert [parcel.in_memory for parcel in run.state.owned.values()] == [FRONT] * len(seen)
        assert all(run.state.owned[f"client/{j}"].version == record.n for j in record.clients)
    assert 3 < len(seen) < 8 and set(run.state.participations) == seen
    assert sum(run.state.participations.values()) == turns


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in KEEPERS])
def test_nothing_is_kept_where_fronts_and_memory_end_with_the_round(scheme: str) -> None:
    run = finished(scheme)
    assert not run.state.owned and set(run.state.participations) <= set(range(8))


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 1), ("adam", 2)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_with_cyclesl_a_client_keeps_its_memory_and_its_place(scheme: str, optimizer: str, moments: int) -> None:
    run, seen = begun(scheme, protocol="cyclesl", optimizer=optimizer, kept_memory=None), set[int]()
    for record in run:
        seen |= set(record.clients)
    owners = {owner for owner in run.state.owned if owner.startswith("client/")}
    assert owners == {f"client/{j}" for j in seen}
    names = {"t", "position", *(f"moment{i}" for i in range(moments)), *("wbi" if scheme in KEEPERS else "")}
    for j, turns in run.state.participations.items():
        kept = run.state.owned[f"client/{j}"].open()
        assert set(kept) == names
        assert int(kept["t"]) == int(kept["position"]) == turns
        assert len(Moments.read(kept).m) == moments
    servers = {owner for owner in run.state.owned if not owner.startswith("client/")}
    slots = {"slot/0", "slot/1", "slot/2"}
    expected = {
        "fedavg": {f"surrogate/{j}" for j in seen},
        "smofi": {"fused"},
        "aligned": {"fused"},
        "sflv1": slots,
        "psl": slots,
    }
    assert servers == expected.get(scheme, slots if scheme == "sglr" else {"server"})


def test_a_server_that_never_resets_keeps_its_memory_alone() -> None:
    assert set(finished(cl.SFLV2(reset="never")).state.owned) == {"server"}


@pytest.mark.parametrize("update", ["fednag", cl.SlowMo(buffers="average")], ids=["fednag", "slowmo"])
def test_an_averaged_momentum_is_one_for_all(update: Any) -> None:
    run = finished("fedavg", update=update)
    assert set(run.state.owned) == {"momentum"}
    (m,) = Moments.read(run.state.owned["momentum"].open()).m
    assert len(m) == len(run.state.W.w) and float(m.norm()) > 0


# ---- Beyond a limit ----------------------------------------------------------------------------------------------

SPILLING: list[tuple[str, dict[str, Any]]] = [
    *((scheme, {}) for scheme in KEEPERS),
    *((scheme, {"protocol": "cyclesl"}) for scheme in SCHEMES),
    ("psl", {"protocol": "cyclesl", "optimizer": "adam", "update": "slowmo"}),
    ("cyclepsl", {"model": normed, "optimizer": "adam"}),
    ("fedavg", {"update": "fednag"}),
]


@pytest.mark.parametrize(
    ("scheme", "changes"), SPILLING, ids=[f"{scheme}-{'-'.join(changes) or 'plain'}" for scheme, changes in SPILLING]
)
def test_on_disk_or_in_memory_is_all_the_same(temporary: Path, scheme: str, changes: dict[str, Any]) -> None:
    inside = finished(scheme, kept_memory=None, **changes)
    assert spilled(temporary) == []
    outside = begun(scheme, kept_memory=0, **changes)
    losses = []
    for record in outside:
        losses.append(record.train_loss)
        assert outside.state.owned and all(parcel.in_memory == 0 for parcel in outside.state.owned.values())
    assert same(inside.model, outside.model)
    assert all(same(inside.personal(j), outside.personal(j)) for j in range(8))
    assert losses == [record.train_loss for record in begun(scheme, **changes)]
    for owner, parcel in inside.state.owned.items():
        found = outside.state.owned[owner].open()
        assert all(torch.equal(tensor, found[name]) for name, tensor in parcel.open().items())
        assert outside.state.owned[owner].bytes() == parcel.bytes()


@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
def test_a_file_goes_when_a_newer_one_takes_its_place(temporary: Path, protocol: str) -> None:
    run = begun("psl", kept_memory=0, protocol=protocol)
    for _ in run:
        gc.collect()
        assert len(spilled(temporary)) == len(run.state.owned)


def alive(values: int) -> int:
    """Tensors in memory that hold so many numbers, or are parts of such."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if type(item) is Tensor]
    return len({t.untyped_storage().data_ptr() for t in tensors if t.untyped_storage().nbytes() == 4 * values})


@pytest.mark.parametrize(("scheme", "values"), [("psl", 35), ("fedavg", 35 + 18)])
def test_what_is_on_disk_takes_no_memory(temporary: Path, scheme: str, values: int) -> None:
    """Neither fronts (psl) nor old models (fedavg) are held on to by clients that took part in some round."""
    run = begun(scheme, kept_memory=0, participation=1, rounds=12)
    held = [alive(values) for record in run if record.clients]
    assert len(run.state.participations) > 4
    assert max(held) <= held[0] + 1


def test_files_go_with_the_run(temporary: Path) -> None:
    run = finished("psl", kept_memory=0)
    result = cl.Result(run.model, [], run.clients)
    assert spilled(temporary)
    del run
    gc.collect()
    assert isinstance(result.clients[0], nn.Module)  # the clients' models still need them
    del result
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_what_was_not_used_for_longest_goes_first(temporary: Path) -> None:
    """With room for four fronts, the clients of the latest rounds stay in memory."""
    run, used = begun("psl", kept_memory=4 * FRONT / 2**20), dict[int, int]()
    for record in run:
        used |= dict.fromkeys(record.clients, record.n)
        gc.collect()
        inside = {j for j in used if run.state.owned[f"client/{j}"].in_memory}
        outside = set(used) - inside
        assert len(inside) == min(4, len(used)) and len(spilled(temporary)) == len(outside)
        assert not outside or max(used[j] for j in outside) <= min(used[j] for j in inside)
    assert outside


def test_a_limit_that_is_not_reached_puts_nothing_on_disk(temporary: Path) -> None:
    run = finished("psl", kept_memory=8 * FRONT / 2**20)
    assert spilled(temporary) == [] and all(parcel.in_memory for parcel in run.state.owned.values())


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "much", True])
def test_a_limit_is_a_number_of_megabytes(wrong: Any) -> None:
    with pytest.raises(cl.ContractError, match="kept_memory"):
        begun("psl", kept_memory=wrong)


def test_a_parcel_comes_back_as_it_was(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(3, dtype=torch.float64), "i": torch.tensor([2**40]), "t": torch.tensor(7)}
    tensors |= {"b": torch.empty(0), "half": torch.randn(4).half(), "part": torch.arange(9.0)[2:7]}
    parcel, untouched = OwnedState(3, tensors), OwnedState(3, tensors)
    assert parcel.in_memory == 24 + 8 + 8 + 0 + 8 + 20 and (parcel.version, parcel.used) == (3, 3)
    parcel.spill(tmp_path)
    assert parcel.in_memory == 0 and len(spilled(tmp_path)) == 1
    found = parcel.open(5)
    assert set(found) == set(tensors) and parcel.used == 5 and parcel.version == 3
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    assert parcel.bytes() == untouched.bytes()
    parcel.open()
    assert parcel.used == 5
    del parcel
    gc.collect()
    assert spilled(tmp_path) == []


def test_a_shelf_counts_only_what_is_in_memory(temporary: Path) -> None:
    kept = {f"client/{j}": OwnedState(j, {"w": torch.zeros(10)}) for j in (3, 1, 2)}
    spill_cache = SpillCache(80)
    spill_cache.trim(kept)
    assert [kept[f"client/{j}"].in_memory for j in (1, 2, 3)] == [0, 40, 40]
    kept["client/1"].open(9)
    spill_cache.trim(kept)
    assert len(spilled(temporary)) == 1
    kept["client/4"] = OwnedState(4, {"w": torch.zeros(10)})
    spill_cache.trim(kept)
    assert [kept[f"client/{j}"].in_memory for j in (1, 2, 3, 4)] == [0, 0, 40, 40]
    assert all(torch.equal(parcel.open()["w"], torch.zeros(10)) for parcel in kept.values())


# ---- Personal models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [model, normed])
@pytest.mark.parametrize("scheme", KEEPERS)
def test_the_model_of_all_is_the_mean_front_of_those_who_took_part(scheme: str, make: Any) -> None:
    run = finished(scheme, model=make)
    met = sorted(run.state.participations)
    assert 3 < len(met) < 8
    fronts = [cl.halves(run.clients[j], 0)[0].state_dict() for j in met]
    total = sum(SIZES[j] for j in met)
    for name, tensor in cl.halves(run.model, 0)[0].state_dict().items():
        if not tensor.is_floating_point():
            assert int(tensor) == max(int(front[name]) for front in fronts)
            continue
        mean = sum(SIZES[j] / total * front[name].double() for j, front in zip(met, fronts, strict=True))
        assert isinstance(mean, Tensor)
        torch.testing.assert_close(tensor.double(), mean, rtol=0, atol=1e-6)
        assert any(float((front[name] - tensor).abs().max()) > 1e-4 for front in fronts)
    backs = [cl.halves(whole, 0)[1] for whole in (run.model, *run.clients)]
    assert all(same(back, backs[0]) for back in backs)


@pytest.mark.parametrize("scheme", KEEPERS)
def test_a_client_that_never_took_part_has_the_front_everybody_began_with(scheme: str) -> None:
    run = finished(scheme)
    absent = [j for j in range(8) if j not in run.state.participations]
    assert 5 in absent  # it has no full batch
    for j in absent:
        assert run.state.front(j) is None
        assert same(cl.halves(run.clients[j], 0)[0], cl.halves(model(), 0)[0])


def test_before_the_first_round_the_model_is_the_given_one() -> None:
    run = begun("psl")
    assert same(run.model, model()) and all(same(own, model()) for own in run.clients)


def test_a_process_that_ends_makes_no_folder_after_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    monkeypatch.setattr(spill, "_SPILLING", lock)
    monkeypatch.setattr(spill, "_FOLDERS", set())
    SpillCache(0).place(tmp_path / "before")
    late, cache = tmp_path / "late", SpillCache(0)
    spill.sweep()
    thread = threading.Thread(target=cache.place, args=(late,))
    thread.start()
    try:
        thread.join(0.2)
        assert list(tmp_path.iterdir()) == []
    finally:
        lock.release()
        thread.join()


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors, real = [OSError(28, "No space left on device")] * 3, tempfile.mkstemp

    def full(*given: Any, **more: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*given, **more)

    monkeypatch.setattr(tempfile, "mkstemp", full)
    monkeypatch.setattr(files, "NAP", 0.001)
    state = OwnedState(1, {"w": torch.ones(3)})
    state.spill(tmp_path)
    assert torch.equal(state.open()["w"], torch.ones(3)) and state.in_memory == 0 and not errors


def test_personal_models_are_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished("psl")
    made, real = list[int](), cl.Run.personal

    def spy(self: cl.Run, client: int) -> nn.Module:
        made.append(client)
        return real(self, client)

    monkeypatch.setattr(cl.Run, "personal", spy)
    own = run.clients
    assert len(own) == 8 and made == []  # nothing is made before it is asked for
    assert same(own[-1], own[7]) and made == [7, 7]
    assert [same(one, own[j]) for j, one in zip((1, 3), own[1:5:2], strict=True)] == [True, True]
    assert [same(one, own[j]) for j, one in zip((7, 6), own[:-3:-1], strict=True)] == [True, True]
    assert len(own[:]) == len(list(own)) == 8 and list(own[8:]) == []
    for outside in (8, -9):
        with pytest.raises(IndexError):
            own[outside]


def test_personal_models_are_copies() -> None:
    run = finished("psl")
    mine = run.clients[0]
    before = copy.deepcopy(mine)
    with torch.no_grad():
        next(iter(mine.parameters())).zero_()
    assert same(run.clients[0], before)


@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in KEEPERS])
def test_where_nobody_keeps_a_front_there_are_no_personal_models(scheme: str, protocol: str) -> None:
    own = finished(scheme, protocol=protocol).clients
    assert len(own) == 0 and list(own) == [] and list(own[:]) == []
    with pytest.raises(IndexError):
        own[0]
