"""What a round needs in memory is counted before it begins: groups of clients that fit train what all would at once,
and what cannot fit is refused, with the sum."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.core import threads
from cutlayer.engine import backend, memory_limit
from cutlayer.engine.memory_limit import MIB, Need
from cutlayer.registry import SCHEMES
from cutlayer.schemes import Scheme, Server
from tests.clients.faulty import Fault, FaultyCohort

Batch = tuple[Tensor, Tensor]
SIZES = (9, 4, 17, 6, 13, 2, 11)  # the sixth has no full batch of three
BASE: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 3, "local_epochs": 1, "threads": 1, "backend": "loop"}
APART = ("seconds", "drift_client", "drift_server")
ALIKE = [field.name for field in dataclasses.fields(cl.Round) if field.name not in APART]


def model() -> nn.Sequential:
    """With buffers on both sides of the cut."""
    torch.default_generator.manual_seed(5)
    return nn.Sequential(
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh()),
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()),
        nn.Linear(8, 3),
    )


def clients(sizes: Sequence[int] = SIZES) -> list[Batch]:
    draw = torch.Generator().manual_seed(3)
    return [
        (torch.randn(n, 4, generator=draw) + j, torch.randint(0, 3, (n,), generator=draw)) for j, n in enumerate(sizes)
    ]


def rounds(make: Callable[[], nn.Module] = model, sizes: Sequence[int] = SIZES, **more: Any) -> cl.Run:
    given = {**BASE, **more}
    if given.get("protocol") == "cyclesl":
        given["test"] = clients([5] * len(sizes))
    return cl.rounds(make(), clients(sizes), **{"test": clients([20])[0], **given})


def counted(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Callable[[int], Need]:
    """How a run like this counts: clients of a round -> what they need."""
    made: list[memory_limit.Sizes] = []
    real = memory_limit.measured

    def listening(*arguments: Any) -> memory_limit.Sizes:
        made.append(real(*arguments))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(memory_limit, "measured", listening)
        run = rounds(memory_limit=1e6, **more)
    (sizes,) = made
    return lambda m: sizes.need(run.setup.backend, m)


def opened(monkeypatch: pytest.MonkeyPatch, scheme: Scheme) -> list[int]:
    """Grows: of every session the scheme opens, how many clients are in it."""
    sessions: list[int] = []
    real = type(scheme).open

    def listening(self: Any, server: Any, clients: Sequence[int]) -> Any:
        sessions.append(len(clients))
        return real(self, server, clients)

    monkeypatch.setattr(type(scheme), "open", listening)
    return sessions


def state(run: cl.Run) -> list[bytes]:
    """Everything that lives on after the last round, and what the models made of it hold."""
    kept = {owner: parcel.open() for owner, parcel in run.state.owned.items()}
    tensors = [t for _, named in sorted(kept.items()) for _, t in sorted(named.items())]
    models = [t for one in (run.model, *run.clients) for t in one.state_dict().values()]
    return [t.contiguous().numpy().tobytes() for t in (*run.state.W, *tensors, *models)]


# ---- Groups ------------------------------------------------------------------------------------------------------

GROUPED: dict[str, dict[str, Any]] = {
    "fedavg": {"scheme": "fedavg"},
    "psl": {"scheme": "psl"},
    "psl cyclesl": {"scheme": "psl", "protocol": "cyclesl", "local_steps": 2, "optimizer": cl.Adam()},
    "fedavg cyclesl": {"scheme": "fedavg", "protocol": "cyclesl"},
    "fedavg fedavgm": {"scheme": "fedavg", "update": cl.FedAvgM(beta=0.3), "optimizer": cl.Adam(), "noise": 0.1},
    "fedavg fednar": {"scheme": "fedavg", "local": cl.FedNAR(max_norm=0.5, norm="joint")},
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups_train_what_everybody_would(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Weights, what is kept, and records, to the bit; six of seven clients a round, in groups of two. (Their test fits
    into memory as one batch, in either run.)"""
    more = {"participation": 6, "test": clients([15])[0], **GROUPED[name]}
    limit = counted(monkeypatch, **more)(2).total / MIB
    whole, grouped = rounds(**more), rounds(**more, memory_limit=limit)
    assert whole.setup.group is None and grouped.setup.group == 2
    sessions = opened(monkeypatch, whole.setup.scheme)
    expected = list(whole)
    assert len(sessions) == 2 and min(sessions) >= 5
    sessions.clear()
    found = list(grouped)
    assert len(sessions) == 6 and max(sessions) == 2
    for one, other in zip(found, expected, strict=True):
        assert {name: getattr(one, name) for name in ALIKE} == {name: getattr(other, name) for name in ALIKE}
        assert one.drift_client is one.drift_server is None and other.drift_client is not None
    assert state(grouped) == state(whole)


@pytest.mark.parametrize("scheme", ["fedavg", "psl"])
def test_groups_are_whole_stacks(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Five would fit, in stacks of two: groups of four."""
    monkeypatch.setattr(backend, "SIZE", 2)
    more: dict[str, Any] = {"scheme": scheme, "backend": "stacked"}
    limit = counted(monkeypatch, **more)(5).total / MIB
    whole, grouped = rounds(**more), rounds(**more, memory_limit=limit)
    assert grouped.setup.group == 4
    assert [one.train_loss for one in grouped] == [one.train_loss for one in whole]
    assert state(grouped) == state(whole)


@pytest.mark.parametrize(
    ("limit", "unit", "found"), [(20, 1, None), (19.5, 1, 19), (7.5, 1, 7), (7.5, 3, 6), (7.5, 10, 7), (1, 1, 1)]
)
def test_as_many_as_fit(limit: float, unit: int, found: int | None) -> None:
    assert memory_limit.in_groups(limit, 20, True, lambda m: Need(m * MIB, 0, 0, 0), unit) == found


# ---- Threads and tests -------------------------------------------------------------------------------------------


def limited(share: float, n: int, **more: Any) -> cl.Run:
    """A run of n threads with a limit that is a share of what one thread needs."""
    need = rounds(**{**more, "test": None, "out": None}).setup.need().total
    return rounds(**{**more, "threads": n, "memory_limit": share * need / MIB})


@pytest.mark.parametrize("share", [0.85, 0.9, 1.0, 1.3])
@pytest.mark.parametrize("scheme", ["smofi", "fedavg", "psl"])
def test_bits_do_not_depend_on_the_number_of_threads(scheme: str, share: float) -> None:
    """Stacks and groups are chosen as for one thread, then as many threads as fit beside them."""
    runs = [limited(share, n, scheme=scheme, backend="stacked", batch_size=2) for n in (1, 2, 3, 8)]
    found = [[one.train_loss for one in run] for run in runs]
    assert all(losses == found[0] for losses in found)
    assert all(state(run) == state(runs[0]) for run in runs)
    assert len({(run.setup.backend.name, run.setup.backend.size, run.setup.stack) for run in runs}) == 1


def test_no_more_threads_than_fit() -> None:
    told: dict[str, Any] = {"scheme": "smofi", "make": wide, "batch_size": 2, "test": None}
    one, two, eight = (rounds(**{**told, "threads": n}).setup.need().total / MIB for n in (1, 2, 8))
    assert one < two < eight
    for limit, n in ((eight, 7), (two, 2), ((one + two) / 2, 1), (one, 1)):  # of seven clients
        setup = rounds(**{**told, "threads": 8, "memory_limit": limit}).setup
        assert (setup.backend.workers.n, setup.group) == (8 if limit == eight else n, None)
        assert ("(8 do not fit into memory_limit)" in setup.backend.words) == (limit != eight)
        assert setup.need().total / MIB <= limit


@pytest.mark.parametrize("begun", [1, 4])
def test_a_run_with_a_limit_goes_on_with_any_number_of_threads(tmp_path: Path, begun: int) -> None:
    told: dict[str, Any] = {"scheme": "smofi", "backend": "auto", "batch_size": 2}
    whole = limited(0.85, 1, **told)
    assert whole.setup.backend.name == "loop" or whole.setup.backend.size < 10
    *_, expected = whole
    part = limited(0.85, begun, **told, out=tmp_path)
    next(part)
    part.close()
    *_, last = limited(0.85, 5 - begun, **told, out=tmp_path)
    assert last.n == 2 and last.train_loss == expected.train_loss


def test_a_run_that_was_looped_for_lack_of_memory_goes_on_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backend, "room", lambda device, alone: 1000.0)
    part = rounds(backend="auto", out=tmp_path)
    assert part.setup.backend.name == "loop"
    next(part)
    part.close()
    monkeypatch.setattr(backend, "room", lambda device, alone: 1e12)
    rest = rounds(backend="auto", out=tmp_path)
    assert rest.setup.backend.name == "loop" and [one.n for one in rest] == [2]


@pytest.mark.parametrize("scheme", ["smofi", "fedavg"])
def test_a_test_obeys_the_limit(scheme: str) -> None:
    """Its batches are smaller, and fewer threads compute them; scores are the same but for rounding."""
    told: dict[str, Any] = {"scheme": scheme, "test": clients([3000])[0], "rounds": 1, "threads": 3}
    free = rounds(**told)
    without = rounds(**{**told, "test": None, "threads": 1}).setup.need().total
    assert free.setup.need().total > 2 * without  # 512 rows in each of three threads
    bound = rounds(**told, memory_limit=without / MIB)
    evaluator = bound.setup.evaluator
    assert evaluator is not None and 1 <= evaluator.rows < 512 and evaluator.workers.n == 1
    assert bound.setup.need().total <= without
    (one,), (other,) = free, bound
    assert one.accuracy == other.accuracy and one.loss == pytest.approx(other.loss, rel=1e-5)


def test_what_a_test_needs_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak of all that a test allocates, outputs included, is within what is counted."""
    run = rounds(wide, scheme="fedavg", test=clients([2000])[0], rounds=1)
    next(run)
    evaluator = run.setup.evaluator
    assert evaluator is not None
    evaluator.pooled(run.state.W)  # whatever is made once
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        evaluator.pooled(run.state.W)
    events = seen.profiler.kineto_results.events()  # type: ignore[union-attr]
    steps = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    peak = max(itertools.accumulate(size for _, size in steps))
    assert 0.2 * run.setup.need().testing < peak <= run.setup.need().testing


# ---- Refusals ----------------------------------------------------------------------------------------------------


def test_stacks_are_made_smaller_before_a_run_is_refused() -> None:
    """Clients that step together need all their halves at once, but not all their activations."""
    told: dict[str, Any] = {"scheme": "smofi", "backend": "stacked", "batch_size": 2}
    whole = rounds(**told)
    most, size = whole.setup.need().total / MIB, whole.setup.backend.size
    fewer = rounds(**told, memory_limit=0.8 * most)
    assert 1 <= fewer.setup.backend.size < size and fewer.setup.group is None
    assert fewer.setup.need().total / MIB <= 0.8 * most
    assert next(fewer).train_loss == pytest.approx(next(whole).train_loss, rel=1e-6)


def wide() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 300), nn.Linear(300, 300), nn.Linear(300, 3))


@pytest.mark.parametrize(
    ("scheme", "least", "who"),
    [
        ("smofi", 7, "a round of 7 clients, which step together, needs"),
        ("sflv1", 7, "a round of 7 clients, which step together, needs"),
        ("cyclesfl", 7, "a round of 7 clients, which step together, needs"),
        ("fedavg", 1, "even one client at a time needs"),
        ("psl", 1, "even one client at a time needs"),
    ],
)
def test_what_cannot_fit_is_refused_with_its_sum(
    monkeypatch: pytest.MonkeyPatch, scheme: str, least: int, who: str
) -> None:
    """It names the field, the value, and what is needed; with exactly that, it trains."""
    need = counted(monkeypatch, make=wide, scheme=scheme)(least)
    assert rounds(wide, scheme=scheme, memory_limit=need.total / MIB).setup.group == (1 if least == 1 else None)
    limit = 0.99 * need.total / MIB
    with pytest.raises(cl.ContractError) as refusal:
        rounds(wide, scheme=scheme, memory_limit=limit)
    said = str(refusal.value)
    assert said.startswith(f"memory_limit = {limit:g}: {who} ")
    assert 0 <= float(said.split("needs ")[1].split(" MiB")[0]) - need.total / MIB < 0.1  # what is said is enough
    for part, name in (
        (need.server, "server halves"),
        (need.fronts, "client halves"),
        (need.activations, "activations"),
        (need.steps, "steps"),
        (need.model, "the model"),
    ):
        assert f"{memory_limit.mib(part)} for {name}" in said
    parts = (need.server, need.fronts, need.activations, need.steps, need.model)
    assert sum(parts) == pytest.approx(need.total)
    assert said.endswith("expected at least that, or fewer clients a round, a smaller batch, or more ranks")


@pytest.mark.parametrize(("size", "words"), [(MIB, "1.0"), (MIB + 1, "1.1"), (8.49 * MIB, "8.5"), (2000, "0.002")])
def test_sizes_are_rounded_up(size: float, words: str) -> None:
    assert memory_limit.mib(size) == words


@pytest.mark.parametrize("lost", [0, 4, 6])
@pytest.mark.parametrize("scheme", ["fedavg", "psl"])
def test_a_client_lost_in_a_group_counts_nowhere(monkeypatch: pytest.MonkeyPatch, scheme: str, lost: int) -> None:
    """Its weight goes to the others, as in a round of all at once; also where it was the whole of its group."""
    limit = counted(monkeypatch, scheme=scheme)(2).total / MIB
    weights = []
    for setup in (rounds(scheme=scheme).setup, rounds(scheme=scheme, memory_limit=limit).setup):
        cohort = FaultyCohort(setup.cohort, [Fault("drop", 1, lost, 1)])
        run = rounds(scheme=scheme)
        done = cl.Run(model(), dataclasses.replace(setup, cohort=cohort), run.state, None)
        assert next(done).lost == 1 and not cohort.unfired
        weights.append(done.state.W)
    assert setup.group == 2
    for whole, grouped in zip(*weights, strict=True):
        torch.testing.assert_close(grouped, whole, rtol=1e-5, atol=1e-6)


def test_averaged_momentum_needs_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    more: dict[str, Any] = {"scheme": "fedavg", "update": "fednag", "optimizer": cl.NAG()}
    with pytest.raises(cl.ContractError, match="a round of 7 clients, which step together"):
        rounds(**more, memory_limit=counted(monkeypatch, **more)(6).total / MIB)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "much", True])
def test_a_limit_is_a_number_above_zero(limit: Any) -> None:
    with pytest.raises(cl.ContractError, match=f"memory_limit = {limit!r}: expected MiB above 0, or None"):
        rounds(memory_limit=limit)


RUN = ["run", "--model", "mlp", "--clients", "6", "--rounds", "1", "--local-epochs", "1", "--quiet"]


def test_a_refused_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does it touch the run that it was to overwrite."""
    out, old = tmp_path / "x", tmp_path / "old"
    assert main([*RUN, "--memory-limit", "64.5", "--out", str(old)]) == 0
    assert "memory_limit = 64.5" in (old / "config.toml").read_text()
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    for scheme in ("smofi", "fedavg"):
        for more in (["--out", str(out)], ["--out", str(old), "--overwrite"]):
            capsys.readouterr()
            assert main([*RUN, "--scheme", scheme, "--memory-limit", "0.001", *more]) == 2
            said = capsys.readouterr().err
            assert said.startswith("cutlayer: error: memory_limit = 0.001: ") and said.count("\n") == 1
    assert not out.exists()
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


# ---- What is counted ---------------------------------------------------------------------------------------------

WIDTH = 48
STEPS = (4, 2, 6, 8, 2)  # samples of each client; with a batch of two, some have finished long before the others


def back_heavy() -> nn.Sequential:
    """A server half larger than anything else, and no buffers."""
    torch.default_generator.manual_seed(0)
    back = nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    return nn.Sequential(nn.Linear(4, WIDTH), back)


class Walk:
    """The largest sum of all tensors as long as a server half that were made since `begin`, each storage once: found by
    walking over whatever Python holds, not by asking the library."""

    def __init__(self, least: int) -> None:
        self.least, self.most = least, 0

    def begin(self) -> None:
        gc.freeze()  # what was there before is not walked over again

    def look(self) -> None:
        found: dict[int, int] = {}
        for thing in gc.get_objects():
            if issubclass(type(thing), Tensor) and not torch._C._functorch.is_batchedtensor(thing):
                storage = thing.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
        self.most = max(self.most, sum(size for size in found.values() if size >= self.least))

    @property
    def halves(self) -> float:
        return self.most / self.least


WALK: list[Walk] = []


@dataclasses.dataclass(frozen=True)
class WatchedSGD(cl.SGD):
    """Looks around in the middle of every step."""

    def update(self, w: Tensor, g: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        WALK[0].look()
        super().update(w, g, m, eta, t)

    def fused(self, w: Tensor, g: Tensor, past: Tensor, eta: float, t: int) -> None:
        WALK[0].look()
        super().fused(w, g, past, eta, t)


@dataclasses.dataclass(frozen=True)
class WatchedAdam(cl.Adam):
    """Looks around in the middle of every step."""

    def apply(self, w: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        WALK[0].look()
        super().apply(w, m, eta, t)


def allocated(monkeypatch: pytest.MonkeyPatch, optimizer: cl.SGD | cl.Adam, **more: Any) -> tuple[float, float]:
    """Server halves there really are in the steps of a round, and those the scheme says."""
    monkeypatch.setattr(threads, "PART", 256)  # what lives for a part of a vector only is far smaller than a half
    run = rounds(back_heavy, STEPS, batch_size=2, rounds=1, server_optimizer=optimizer, **{"test": None, **more})
    scheme: Any = run.setup.scheme
    walk = Walk(sum(p.nbytes for p in back_heavy()[1].parameters()))
    WALK[:] = [walk]
    real = type(scheme).open

    def listening(self: Any, *arguments: Any) -> Any:
        walk.begin()
        return real(self, *arguments)

    monkeypatch.setattr(type(scheme), "open", listening)
    try:
        list(run)
    finally:
        gc.unfreeze()
    return walk.halves, scheme.traits.server_copies(len(STEPS), optimizer.moments)


@pytest.mark.parametrize("optimizer", [WatchedSGD(lr=0.01), WatchedAdam()], ids=["sgd", "adam"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_server_halves_are_what_the_scheme_says(
    monkeypatch: pytest.MonkeyPatch, scheme: str, optimizer: cl.SGD | cl.Adam
) -> None:
    found, said = allocated(monkeypatch, optimizer, scheme=scheme)
    spare = optimizer.moments - 1 if scheme in ("smofi", "aligned") else 0  # whoever steps last never becomes history
    assert found == pytest.approx(said - spare)


def test_stacks_hold_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever still steps are neighbours, whatever the order in which clients finish."""
    found, said = allocated(monkeypatch, WatchedSGD(lr=0.01), scheme="smofi", backend="stacked")
    assert found == pytest.approx(said)


def test_a_joint_norm_keeps_the_gradients_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """... from a step's backward pass until its clients have agreed to it."""
    rule = cl.FedNAR(max_norm=0.5, norm="joint")
    real = Server.agreed

    def watched(self: Server, replies: Any) -> Any:
        WALK[0].look()
        return real(self, replies)

    monkeypatch.setattr(Server, "agreed", watched)
    found, said = allocated(monkeypatch, WatchedSGD(lr=0.01), scheme="smofi", local=rule)
    counts = [counted(monkeypatch, make=back_heavy, sizes=STEPS, scheme="smofi", local=one)(3) for one in (None, rule)]
    d_s = 4 * sum(p.numel() for p in back_heavy()[1].parameters())
    assert counts[1].server == counts[0].server + 3 * d_s
    assert said < found <= said + len(STEPS)


@pytest.mark.parametrize(
    ("scheme", "server", "fronts", "wait"),
    [("fedavg", 9, 3, 0), ("smofi", 9, 3, 0), ("ssl", 3, 1, 0), ("sglr", 9, 3, 2)],
)
def test_the_sum_by_hand(monkeypatch: pytest.MonkeyPatch, scheme: str, server: int, fronts: int, wait: int) -> None:
    """Three clients, one at a time, in batches of two; Adam for them and SGD for the server. Where a step gathers the
    smashed data of all first, two fronts wait for their gradients while the third is computed."""
    more: dict[str, Any] = {"scheme": scheme, "optimizer": cl.Adam(), "server_optimizer": cl.SGD(), "batch_size": 2}
    need = counted(monkeypatch, make=back_heavy, sizes=STEPS, **more)(3)
    d_c, d_s = (4 * sum(p.numel() for p in half.parameters()) for half in back_heavy())
    assert need.server == server * d_s
    assert need.fronts == fronts * 4 * d_c
    assert need.model == (memory_limit.COPIES + 1) * (d_c + d_s)
    front, back, smashed = 4, 2 * WIDTH, WIDTH  # floats of a sample: inputs of linear layers, outputs of tanh
    passes = (front + back + 2 * smashed) + wait * (front + 2 * smashed)
    beside = memory_limit.BESIDE * (WIDTH + WIDTH) + 4 + (3 * 3 * smashed if scheme == "sglr" else 0)
    assert need.activations == 4 * 2 * (passes + beside)
    assert need.steps == (1 if scheme == "ssl" else 3) * max(3 * d_c, 2 * d_s)
    assert need.total == need.server + need.fronts + need.activations + need.steps + need.model


def test_activations_are_what_the_backward_pass_needs() -> None:
    """Of each sample, the inputs of the two linear layers and the output of tanh, which is one of them."""
    x = torch.randn(6, 4, dtype=torch.float64)
    blocks = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 3))).double()
    size, largest, out = memory_limit.saved(blocks, range(2), x, torch.device("cpu"))
    assert (size, largest) == (8 * (4 + 5), 8 * 5)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, blocks(x)) and not out.requires_grad


def test_counting_leaves_no_trace() -> None:
    """It runs the model on a few rows: neither its buffers nor the caller's random numbers move."""
    mine = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))).eval()
    weights, drawn = copy.deepcopy(mine.state_dict()), torch.random.get_rng_state()
    rounds(lambda: mine, memory_limit=1000.0)
    memory_limit.saved(mine, range(2), torch.randn(6, 4, generator=torch.Generator()), torch.device("cpu"))
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in mine.state_dict().items())
    assert not mine.training and all(p.grad is None for p in mine.parameters())
