"""Labels that stay: every scheme in the U-shape against its naive restatement, in float64 to 1e-9.

BatchNorm stands in front, middle and last block; of the clients, with 1, 2, 1, 4 and 0 batches, some finish early.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import cutlayer as cl
from tests.equal import compare, naive, naive_cyclesl, naive_u_shape
from tests.equal.compare import EXACT, OPTIMIZERS, same_clients
from tests.equal.naive import difference, small_clients
from tests.equal.naive_local import FedNAR, FedProx, Local
from tests.equal.naive_u_shape import Outcome, Scheme, Turned

SIZES = (5, 9, 6, 17, 3)
CLIENTS = small_clients(SIZES)
SCHEMES: dict[str, tuple[Any, Callable[[], Scheme]]] = {
    "fedavg": ("fedavg", naive_u_shape.fedavg),
    "sflv1-epoch": ("sflv1", lambda: naive_u_shape.sflv1("epoch")),
    "sflv1-step": (cl.SFLV1(every="step"), lambda: naive_u_shape.sflv1("step")),
    "smofi": ("smofi", naive_u_shape.smofi),
    "sflv2-client": ("sflv2", naive_u_shape.sflv2),
    "sflv2-step-round": (cl.SFLV2(order="step", reset="round"), lambda: naive_u_shape.sflv2("step", "round")),
    "ssl": ("ssl", naive_u_shape.ssl),
    "mergesfl": ("mergesfl", naive_u_shape.mergesfl),
    "psl": ("psl", naive_u_shape.psl),
    "sglr": ("sglr", naive_u_shape.sglr),
}
VARIANTS: dict[str, tuple[Any, Callable[[], Scheme]]] = {
    "sflv1-round": (cl.SFLV1(every="round"), lambda: naive_u_shape.sflv1("round")),
    "smofi-alpha": (cl.SMoFi(alpha=-1.0), lambda: naive_u_shape.smofi(-1.0)),
    "smofi-clients": (cl.SMoFi(fuse_clients=True), lambda: naive_u_shape.smofi(fuse_clients=True)),
    "smofi-adaptive": (cl.SMoFi(adaptive=True), lambda: naive_u_shape.smofi(adaptive=True)),
    "sflv2-client-round": (cl.SFLV2(reset="round"), lambda: naive_u_shape.sflv2("client", "round")),
    "sflv2-step": (cl.SFLV2(order="step"), lambda: naive_u_shape.sflv2("step")),
    "sglr-all": (cl.SGLR(share=1.0), lambda: naive_u_shape.sglr(1.0)),
}
EVERY = SCHEMES | VARIANTS
ALONE = ("sflv2-client", "ssl")  # one client at a time: there is nothing to stack
BOTH = [(s, backend) for s in SCHEMES for backend in ("loop", "stacked") if backend == "loop" or s not in ALONE]
LOCALS: dict[str, tuple[Any, Local]] = {
    "none": (None, None),
    "prox": (cl.FedProx(mu=0.3), FedProx(mu=0.3)),
    "nar-joint": (cl.FedNAR(max_norm=1.5, norm="joint"), FedNAR(max_norm=1.5, norm="joint")),
    "nar-half": (cl.FedNAR(max_norm=0.8, norm="half"), FedNAR(max_norm=0.8, norm="half")),
}


def turned_model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Four blocks. No bias stands right before a BatchNorm, whose gradient would be rounding; and the middle is bent
    before its BatchNorm, so that the mean gradient at the cut, which SGLR hands out, is not rounding either."""
    torch.default_generator.manual_seed(3)
    return nn.Sequential(
        nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6)),
        nn.Sequential(nn.Linear(6, 4), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    ).to(dtype)


def task_of(optimizer: str, server: str | None = None, **changes: Any) -> Turned:
    """Three rounds, cut after the first of four blocks; with fixed steps a client below a batch trains on all of it."""
    given: dict[str, Any] = {"model": turned_model(), "cut": 0, "rounds": 3, "local_epochs": 1}
    given |= {"rule": OPTIMIZERS[optimizer][1], "server_rule": None if server is None else OPTIMIZERS[server][1]}
    given |= {"small_client": "one_batch"} if "local_steps" in changes else {}
    return Turned(**{"clients": CLIENTS, **given, **changes})


def library(task: Turned, scheme: Any, *optimizers: str, **more: Any) -> cl.Result:
    return compare.library(task, scheme, *optimizers, labels="stay", **more)


def length(scheme: str) -> dict[str, Any]:
    return {"local_epochs": 2} if scheme == "sflv1-epoch" else {}


@functools.cache
def expected(scheme: str, optimizer: str, local: str, **changes: Any) -> Outcome:
    """The restatement, played once for both backends."""
    task = task_of(optimizer, **length(scheme) | changes)
    return naive_u_shape.train(dataclasses.replace(task, local=LOCALS[local][1]), EVERY[scheme][1]())


def same(result: cl.Result, outcome: Outcome) -> bool:
    """The joint model, and where clients keep their ends each client's own model too."""
    model, own = outcome
    assert len(result.clients) == len(own)
    assert all(record.train_loss is None for record in result.history)
    return difference(result.model, model) <= EXACT and (not own or same_clients(result, own))


def check(scheme: str, optimizer: str, backend: str = "auto", local: str = "none", **changes: Any) -> None:
    task = task_of(optimizer, **length(scheme) | changes)
    result = library(task, EVERY[scheme][0], optimizer, local=LOCALS[local][0], backend=backend)
    assert same(result, expected(scheme, optimizer, local, **changes))
    if "nar" in local:  # or it would show nothing
        rates = [record.clip_rate or 0.0 for record in result.history]
        assert 0.1 < sum(rates) / len(rates) < 0.95


# ---- Every scheme ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam"])
@pytest.mark.parametrize(("scheme", "backend"), BOTH)
def test_scheme(scheme: str, backend: str, optimizer: str) -> None:
    """With NAG the rounds end in FedAvgM; what clients keep, it leaves alone."""
    changes: dict[str, dict[str, Any]] = {"sgd": {}, "nag": {"global_beta": 0.3}, "adam": {"rounds": 2}}
    check(scheme, optimizer, backend, **changes[optimizer])


@pytest.mark.parametrize("scheme", VARIANTS)
def test_variant(scheme: str) -> None:
    check(scheme, "sgd", "stacked")


def test_momenta_of_clients_fused_under_adam() -> None:
    check("smofi-clients", "adam", "loop", rounds=2, global_beta=0.3)


@pytest.mark.parametrize("scheme", ["smofi", "mergesfl", "sflv2-step-round", "psl"])
def test_another_optimizer_on_the_server(scheme: str) -> None:
    """The last block is stepped by the clients' optimizer."""
    given, restated = SCHEMES[scheme]
    task = task_of("nag", "adam", rounds=2)
    assert same(library(task, given, "nag", "adam"), naive_u_shape.train(task, restated()))


@pytest.mark.parametrize("scheme", ["smofi", "sflv2-client", "mergesfl"])
def test_another_cut(scheme: str) -> None:
    """Of four blocks, two before the cut: the middle is one."""
    check(scheme, "sgd", cut=1, rounds=2)


@pytest.mark.parametrize("scheme", ["smofi", "sflv1-epoch", "mergesfl"])
def test_fixed_steps(scheme: str) -> None:
    """Four steps of everybody, and a client below a batch trains on all it has."""
    check(scheme, "adam", local_steps=4, rounds=2)


@pytest.mark.parametrize("scheme", ["smofi", "sflv2-step-round", "mergesfl", "psl"])
def test_last_batches_of_unequal_length(scheme: str) -> None:
    given, restated = SCHEMES[scheme]
    task = task_of("sgd", last_batch="keep", clients=small_clients((6, 8, 15, 3)), rounds=2)
    assert same(library(task, given, "sgd", backend="stacked"), naive_u_shape.train(task, restated()))


@pytest.mark.parametrize("scheme", ["fedavg", "smofi", "sflv2-client", "ssl", "mergesfl", "psl", "sglr"])
def test_some_clients_each_round(scheme: str) -> None:
    """Two of four, read off the records; who is not in a round keeps what it has."""
    given, restated = SCHEMES[scheme]
    task = task_of("sgd", clients=small_clients((5, 9, 6, 13)), global_beta=0.3)
    result = library(task, given, "sgd", participation=0.5)
    cohorts = [sorted(record.clients) for record in result.history]
    assert len({tuple(J) for J in cohorts}) > 1
    assert same(result, naive_u_shape.train(dataclasses.replace(task, cohorts=cohorts), restated()))


@pytest.mark.parametrize("scheme", ["smofi", "sflv2-client", "ssl"])
def test_a_cut_that_is_redrawn(scheme: str) -> None:
    """The last block is the client's at every cut; without memory between rounds, each round is a run of its own."""
    given, restated = SCHEMES[scheme]
    task = task_of("sgd")
    result = library(task, given, "sgd", cut=(0, 1), seed=1)
    assert {record.cut for record in result.history} == {0, 1}
    model = task.model
    for record in result.history:
        rule = dataclasses.replace(task.rule, lr=task.rule.eta(record.n), decay=1.0)
        round_n = dataclasses.replace(task, model=model, cut=record.cut, rule=rule, rounds=1)
        model, _ = naive_u_shape.train(round_n, restated())
    assert difference(result.model, model) <= EXACT


# ---- Local rules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["sflv1-epoch", "smofi", "sflv2-client", "ssl", "mergesfl", "psl"])
def test_proximal_term(scheme: str) -> None:
    check(scheme, "sgd", "loop" if scheme == "smofi" else "stacked", "prox", rounds=2)


@pytest.mark.parametrize("scheme", ["fedavg", "sflv1-step", "smofi", "sflv2-client", "mergesfl", "sglr"])
def test_norm_per_half(scheme: str) -> None:
    """Front and last block are one half, the middle is the other."""
    check(scheme, "sgd", "stacked" if scheme == "smofi" else "loop", "nar-half", rounds=2)


@pytest.mark.parametrize(("scheme", "backend"), [pair for pair in BOTH if pair[0] not in ("mergesfl", "sglr")])
def test_joint_norm(scheme: str, backend: str) -> None:
    """It is of front, middle and last block together."""
    check(scheme, "adam" if scheme == "smofi" else "sgd", backend, "nar-joint", rounds=2)


@pytest.mark.parametrize("scheme", ["mergesfl", "sglr"])
def test_a_joint_norm_is_refused_where_no_pair_steps_together(scheme: str) -> None:
    with pytest.raises(cl.ContractError, match="joint norm"):
        library(task_of("sgd"), scheme, "sgd", local=cl.FedNAR(norm="joint"))


# ---- FedAvg knows no shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam"])
def test_fedavg_is_that_of_the_uncut_model(optimizer: str) -> None:
    task = task_of(optimizer, global_beta=0.3)
    assert difference(library(task, "fedavg", optimizer).model, naive.train(task, naive.fedavg)) <= EXACT


def shapes(task: Turned, scheme: Any, *optimizers: str, **more: Any) -> tuple[cl.Result, cl.Result]:
    """The same run with labels that stay and with labels that are sent."""
    stay, sent = (compare.library(task, scheme, *optimizers, labels=how, **more) for how in ("stay", "send"))
    assert [record.clients for record in stay.history] == [record.clients for record in sent.history]
    return stay, sent


@pytest.mark.parametrize(
    ("optimizer", "local", "backend"),
    [
        ("sgd", "none", "loop"),
        ("adam", "none", "stacked"),
        ("sgd", "prox", "stacked"),
        ("nag", "nar-joint", "loop"),
        ("adam", "nar-joint", "stacked"),
    ],
)
def test_fedavg_is_what_it_is_with_labels_sent(optimizer: str, local: str, backend: str) -> None:
    """The same seeds, in random order."""
    more: dict[str, Any] = {"local": LOCALS[local][0], "shuffle": True, "participation": 0.8, "backend": backend}
    stay, sent = shapes(task_of(optimizer, rounds=2), "fedavg", optimizer, seed=7, **more)
    assert difference(stay.model, sent.model) <= 1e-12


@pytest.mark.parametrize("update", [cl.FedNAG(), cl.SlowMo(buffers="average"), cl.SlowMo(lr=0.7, beta=0.6)], ids=str)
def test_an_update_sees_the_whole_model(update: Any) -> None:
    """Also one that averages momenta, of which the last block's is the client's here and the server's there."""
    stay, sent = shapes(task_of("sgd"), "fedavg", "sgd", update=update)
    assert difference(stay.model, sent.model) <= 1e-12


@pytest.mark.parametrize("scheme", ["smofi", "sflv2-client", "psl"])
def test_elsewhere_it_can_be_seen_whose_the_last_block_is(scheme: str) -> None:
    stay, sent = shapes(task_of("sgd", rounds=2), SCHEMES[scheme][0], "sgd")
    assert difference(stay.model, sent.model) > 1e-4


# ---- Rounds of one batch -----------------------------------------------------------------------------------------

ONWARD: dict[str, naive_u_shape.RoundOf] = {
    "psl": naive_u_shape.onward_surrogates(),
    "sglr": naive_u_shape.onward_surrogates(0.5),
    "sflv2": naive_u_shape.onward_sequence(relay=False),
    "ssl": naive_u_shape.onward_sequence(relay=True),
}


@pytest.mark.parametrize(
    ("scheme", "participation", "backend"),
    [
        ("psl", 0.5, "loop"),
        ("psl", 1.0, "stacked"),
        ("sglr", 0.5, "stacked"),
        ("sflv2", 0.5, "loop"),
        ("ssl", 0.5, "loop"),
    ],
)
def test_memory_that_lives_on(scheme: str, participation: float, backend: str) -> None:
    """The last block's too, with its client; loaders go on where they were."""
    task = task_of("adam", clients=small_clients((5, 9, 6, 13)), rounds=6)
    result = library(task, scheme, "adam", protocol="cyclesl", participation=participation, backend=backend)
    task = dataclasses.replace(task, cohorts=[sorted(record.clients) for record in result.history])
    model, own = naive_u_shape.train_onward(task, ONWARD[scheme], relay=scheme == "ssl")
    assert difference(result.model, model) <= EXACT
    assert scheme not in ("psl", "sglr") or same_clients(result, own)


def test_fedavg_whose_memory_lives_on() -> None:
    task = task_of("adam", clients=small_clients((5, 9, 6, 13)), rounds=6)
    result = library(task, "fedavg", "adam", protocol="cyclesl", participation=0.5)
    cohorts = [sorted(record.clients) for record in result.history]
    assert difference(result.model, naive_cyclesl.fedavg(task, cohorts)) <= EXACT


# ---- Single precision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["fedavg", "sflv1-step", "smofi", "sflv2-client", "mergesfl", "psl"])
def test_float32(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """A float32 run stays within rounding of the float64 truth, at a rate gentle enough for rounding not to grow."""
    given, restated = SCHEMES[scheme]
    gentle = tuple(dataclasses.replace(one, lr=0.01) for one in OPTIMIZERS["sgd"])
    monkeypatch.setitem(OPTIMIZERS, "gentle", gentle)
    clients = small_clients(SIZES, torch.float32)
    single = task_of("gentle", model=turned_model(torch.float32), clients=clients, rounds=2)
    twin, rows = turned_model(torch.float32).double(), [(x.double(), y) for x, y in clients]
    truth, _ = naive_u_shape.train(dataclasses.replace(single, model=twin, clients=rows), restated())
    answer = library(single, given, "gentle").model
    assert all(w.dtype == torch.float32 for w in answer.parameters())
    assert difference(answer, truth) <= 1e-5


# ---- What is refused ---------------------------------------------------------------------------------------------


def refused(scheme: Any, match: str, model: nn.Sequential | None = None, **more: Any) -> None:
    with pytest.raises(cl.ContractError, match=match):
        compare.library(task_of("sgd", model=model or turned_model()), scheme, "sgd", **{"labels": "stay", **more})


@pytest.mark.parametrize("scheme", ["cyclepsl", "cyclesfl", "cyclesglr", "cyclessl"])
def test_a_server_that_trains_by_itself_needs_the_labels(scheme: str) -> None:
    refused(scheme, "labels = 'stay'.* trains the server by itself .* needs the labels")


def test_clients_chosen_by_their_labels_need_the_labels() -> None:
    refused(cl.MergeSFL(select="kl_greedy"), "labels = 'stay'.* label counts")


@pytest.mark.parametrize("scheme", ["fedavg", "mergesfl"])
def test_a_word_that_is_nearly_right(scheme: str) -> None:
    refused(scheme, "labels 'sty': did you mean 'stay'", labels="sty")


@pytest.mark.parametrize("cut", [2, 3, -1, (0, 2), (1, 3)], ids=str)
def test_a_cut_that_leaves_no_middle(cut: Any) -> None:
    refused("smofi", r"cut = .*: expected block indices from 0 to 1 .*last block stays with the client", cut=cut)


def test_a_model_of_two_blocks_has_no_middle() -> None:
    refused("fedavg", "2 blocks.* at least 3", nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double())


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


class First(nn.Linear):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        return super().forward(pair[0])


def test_what_goes_to_the_last_block_has_to_travel() -> None:
    """Between blocks of the server a pair may pass; on the way to the client it may not."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), Pair(), First(4, 3)).double()
    compare.library(task_of("sgd", model=model, rounds=1), "fedavg", "sgd")
    refused("fedavg", "block 2 gives tuple, expected one floating tensor", model)


def sharing(with_last: int) -> nn.Sequential:
    torch.default_generator.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(5, 5, bias=False) for _ in range(4))).double()
    model[3].weight = model[with_last].weight
    return model


@pytest.mark.parametrize(("with_last", "cut"), [(1, 0), (2, 0), (2, 1)])
def test_the_server_shares_no_parameter_with_the_last_block(with_last: int, cut: int) -> None:
    refused("smofi", f"'{with_last}.weight' is shared by blocks {with_last} and 3", sharing(with_last), cut=cut)


@pytest.mark.parametrize("scheme", ["fedavg", "smofi", "sflv2", "mergesfl"])
@pytest.mark.parametrize(("with_last", "cut"), [(0, 0), (1, 1)])
def test_front_and_last_block_share_a_parameter(scheme: str, with_last: int, cut: int) -> None:
    """Its gradient is the sum over both uses, as in one model that is not cut."""
    model, draw = sharing(with_last), torch.Generator().manual_seed(4)
    x, y = torch.randn(12, 5, generator=draw, dtype=torch.float64), torch.randint(0, 5, (12,), generator=draw)
    sgd = cl.SGD(lr=0.1, momentum=0.9, weight_decay=0.01)
    options: dict[str, Any] = {"batch_size": 4, "local_epochs": 2, "rounds": 1, "shuffle": False, "optimizer": sgd}
    result = cl.train(model, [(x, y)], cut=cut, scheme=scheme, labels="stay", **options)
    plain = sharing(with_last)
    step = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for start in (0, 4, 8) * 2:
        step.zero_grad()
        nn.functional.cross_entropy(plain(x[start : start + 4]), y[start : start + 4]).backward()
        step.step()
        if scheme == "sflv2":  # it forgets the server's momentum after each step
            for index in {1, 2} - {with_last, cut}:
                step.state[plain[index].weight]["momentum_buffer"].zero_()
    assert isinstance(result.model, nn.Sequential) and result.model[3].weight is result.model[with_last].weight
    for found, expected in zip(result.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)


# ---- Whether all this can fail -----------------------------------------------------------------------------------


def test_this_task_can_tell_them_apart() -> None:
    """Each scheme and each rule gives another model, but for SFLV1 with one average a round, which is FedAvg."""
    answers = [expected(scheme, "sgd", "none")[0] for scheme in EVERY]
    answers += [expected("smofi", "sgd", local, rounds=2)[0] for local in LOCALS]
    same = [(i, k) for i, one in enumerate(answers) for k in range(i) if difference(one, answers[k]) < 1e-5]
    assert same == [(len(SCHEMES), 0)]
