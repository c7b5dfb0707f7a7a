"""Where the later methods must agree with others or with a formula on paper, they do: in float64, on unequal clients.

Local rules and updates that leave everything as it is, one client or identical samples, the gradients that come down at
the cut, what a frozen pass may touch, and CycleSL's example of one neuron on each side.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutlayer as cl
from tests.equal.naive import Batch, difference, small_clients, small_model

SGD = cl.SGD(lr=0.05, momentum=0.9, weight_decay=0.01, decay=0.95)
STEADY = cl.SGD(lr=0.05, momentum=0.9, weight_decay=0.01)
ADAM = cl.Adam(lr=0.01, weight_decay=0.01)
NEW_SCHEMES = ["mergesfl", "psl", "sglr", "ssl", "cyclepsl", "cyclesfl", "cyclesglr", "cyclessl"]
OLD_SCHEMES = ["fedavg", cl.SFLV1(every="epoch"), cl.SFLV1(every="step"), "sflv2", "smofi"]
SIZES = (5, 9, 6, 13, 3)
CYCLES = ["CyclePSL", "CycleSFL", "CycleSGLR", "CycleSSL"]


def train(scheme: Any, **more: Any) -> cl.Result:
    """A short run on unequal clients with BatchNorm on both sides of the cut."""
    given: dict[str, Any] = {"model": small_model(), "clients": small_clients(SIZES), "cut": 1, "optimizer": SGD}
    given |= {"scheme": scheme, "rounds": 2, "batch_size": 4, "local_epochs": 2, "shuffle": False}
    return cl.train(**given | more)


def apart(one: cl.Result, other: cl.Result) -> float:
    return difference(one.model, other.model)


# ---- Local rules and updates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "optimizer"), [*((scheme, SGD) for scheme in OLD_SCHEMES), ("fedavg", ADAM), ("smofi", ADAM)], ids=str
)
def test_local_rules_that_change_nothing(scheme: Any, optimizer: Any) -> None:
    """FedProx(0) and a FedNAR that never clips are no rule at all; with a hold on the weights they are."""
    same: dict[str, Any] = {"optimizer": optimizer, "rounds": 1}
    plain = train(scheme, **same)
    idle = [cl.FedProx(mu=0.0), cl.FedNAR(max_norm=1e9, norm="joint"), cl.FedNAR(max_norm=1e9, norm="half")]
    for local in idle:
        assert apart(plain, train(scheme, local=local, **same)) <= 1e-12
    for local in (cl.FedProx(mu=0.5), cl.FedNAR(max_norm=0.5)):
        assert apart(plain, train(scheme, local=local, **same)) > 1e-3


@pytest.mark.parametrize("scheme", NEW_SCHEMES)
def test_local_rules_that_change_nothing_in_the_later_schemes(scheme: str) -> None:
    plain = train(scheme, rounds=1)
    for local in (cl.FedProx(mu=0.0), cl.FedNAR(max_norm=1e9, norm="half")):
        assert apart(plain, train(scheme, rounds=1, local=local)) <= 1e-12
    for local in (cl.FedProx(mu=0.5), cl.FedNAR(max_norm=0.3, norm="half")):
        assert apart(plain, train(scheme, rounds=1, local=local)) > 1e-4


def test_fednar_takes_an_infinite_limit() -> None:
    assert apart(train("fedavg"), train("fedavg", local=cl.FedNAR(max_norm=math.inf))) <= 1e-12


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_the_joint_norm_does_not_see_the_cut(cut: int) -> None:
    """It is that of the uncut model; one per half is not."""
    for local, equal in ((cl.FedNAR(max_norm=0.8, norm="joint"), True), (cl.FedNAR(max_norm=0.8, norm="half"), False)):
        other = train("fedavg", cut=(cut + 1) % 3, local=local)
        assert (apart(train("fedavg", cut=cut, local=local), other) <= 1e-9) is equal


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=lambda o: type(o).__name__)
def test_slowmo_without_momentum_is_fedavg(optimizer: Any) -> None:
    same: dict[str, Any] = {"optimizer": optimizer, "local_steps": 4}
    plain = train("fedavg", **same)
    assert apart(plain, train("fedavg", update=cl.SlowMo(lr=1.0, beta=0.0), **same)) <= 1e-12
    assert apart(plain, train("fedavg", update=cl.SlowMo(lr=0.5, beta=0.0), **same)) > 1e-3


@pytest.mark.parametrize("optimizer", [STEADY, cl.Adam(lr=0.01)], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("scheme", ["fedavg", "smofi"])
def test_slowmo_at_a_steady_rate_is_fedavgm(scheme: str, optimizer: Any) -> None:
    """With a rate that decays, SlowMo's momentum shrinks with it, and FedAvgM's does not."""
    same: dict[str, Any] = {"optimizer": optimizer, "local_steps": 4, "rounds": 3}
    slow = train(scheme, update=cl.SlowMo(lr=1.0, beta=0.6), **same)
    assert apart(slow, train(scheme, update=cl.FedAvgM(beta=0.6), **same)) <= 1e-12
    same["optimizer"] = SGD
    slow = train(scheme, update=cl.SlowMo(lr=1.0, beta=0.6), **same)
    assert apart(slow, train(scheme, update=cl.FedAvgM(beta=0.6), **same)) > 1e-5


@pytest.mark.parametrize("given", [SGD, cl.NAG(lr=0.05, momentum=0.9, weight_decay=0.01, decay=0.95)], ids=str)
def test_the_first_round_of_fednag_is_fedavg_with_nag(given: Any) -> None:
    nag = cl.NAG(lr=0.05, momentum=0.9, weight_decay=0.01, decay=0.95)
    for rounds, equal in ((1, True), (2, False)):
        same: dict[str, Any] = {"local_steps": 4, "rounds": rounds}
        fednag = train("fedavg", optimizer=given, update=cl.FedNAG(), **same)
        assert (apart(fednag, train("fedavg", optimizer=nag, **same)) <= (1e-12 if equal else 1e-3)) is equal


def test_smofi_history_on_paper() -> None:
    """Two clients, T = (1, 3), constant gradients 1 and 2: the fused momentum from the formula, step by step.

    The front is frozen, each client has one number in all its samples, and the loss is the output.
    """
    g1, g2, beta, alpha, eta = 1.0, 2.0, 0.9, -0.7, 0.1
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    nn.init.ones_(model[0].weight).requires_grad_(False)  # type: ignore[arg-type]
    nn.init.ones_(model[1].weight)  # type: ignore[arg-type]
    clients = [
        (torch.full((4 * T, 1), g).double(), torch.zeros(4 * T, dtype=torch.int64)) for g, T in ((g1, 1), (g2, 3))
    ]
    more: dict[str, Any] = {"model": model, "clients": clients, "cut": 0, "rounds": 1, "local_epochs": 1}
    more |= {"optimizer": cl.SGD(lr=eta, momentum=beta, weight_decay=0.0), "loss": lambda out, y: out.mean()}
    mbar0 = (g1 + g2) / 2
    m2 = beta * mbar0 + g2
    mbar1 = (m2 + 2**alpha * g1) / 2
    m3 = beta * mbar1 + g2
    first, second = 1 - eta * g1, 1 - eta * (g2 + m2 + m3)
    back = train(cl.SMoFi(alpha=alpha), **more).model.state_dict()["1.weight"]
    assert float(back) == pytest.approx((1 * first + 3 * second) / 4, abs=1e-12)


# ---- One client, identical samples -------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=lambda o: type(o).__name__)
def test_with_one_client_the_plain_schemes_are_one(optimizer: Any) -> None:
    same: dict[str, Any] = {"clients": small_clients((14,)), "optimizer": optimizer}
    expected = train("fedavg", **same)
    one = [cl.SFLV1(every="round"), cl.SFLV2(order="client", reset="round"), "mergesfl", "ssl", "psl", "smofi"]
    for scheme in one:
        assert apart(train(scheme, **same), expected) <= 1e-9
    for scheme in ("cyclepsl", "cyclesfl", "cyclessl", "sglr"):
        assert apart(train(scheme, **same), expected) > 1e-4


def test_with_one_client_the_cycles_are_one() -> None:
    for protocol in ("smofi", "cyclesl"):
        same: dict[str, Any] = {"clients": small_clients((14,)), "protocol": protocol, "rounds": 3}
        expected = train("cyclesfl", **same)
        assert apart(train("cyclepsl", **same), expected) <= 1e-12
        assert apart(train("cyclessl", **same), expected) <= 1e-12


@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
@pytest.mark.parametrize("pair", [("sglr", "psl"), ("cyclesglr", "cyclepsl")], ids=str)
def test_a_common_gradient_of_identical_samples_is_their_own(pair: tuple[str, str], protocol: str) -> None:
    """One active client, which has one sample many times; with samples that differ it is another run."""
    plain = nn.Sequential(
        nn.Sequential(nn.Linear(5, 4), nn.Tanh()), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)
    ).double()
    averaging = (cl.SGLR if pair[0] == "sglr" else cl.CycleSGLR)(share=0.2)
    (x, y), *others = small_clients((9, 12, 5))
    for clients, equal in ([(x[:1].repeat(9, 1), y[:1].repeat(9)), *others], True), ([(x, y), *others], False):
        same: dict[str, Any] = {"model": plain, "clients": clients, "protocol": protocol, "rounds": 3, "cut": 0}
        ours, own = train(averaging, **same), train(pair[1], **same)
        assert (apart(ours, own) <= (1e-9 if equal else 1e-4)) is equal
        assert all((difference(ours.clients[j], own.clients[j]) <= (1e-9 if equal else 0)) is equal for j in range(3))


# ---- The gradients that come down --------------------------------------------------------------------------------


class Listen(nn.Module):
    """The last layer of a front; it hears every gradient that comes down, in the order of the backward passes."""

    heard: ClassVar[list[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x = x * 1.0
            x.register_hook(lambda gradient: self.heard.append(gradient.detach().clone()))  # type: ignore[no-untyped-call]
        return x


def listening(batchnorm: bool) -> nn.Sequential:
    torch.default_generator.manual_seed(11)
    middle: list[nn.Module] = [nn.Linear(4, 6, bias=False), *([nn.BatchNorm1d(6)] if batchnorm else [])]
    front = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), Listen())
    return nn.Sequential(front, nn.Sequential(*middle, nn.Tanh()), nn.Linear(6, 3)).double()


def cut_gradients(scheme: Any, model: nn.Sequential, clients: list[Batch], **more: Any) -> list[Tensor]:
    """What comes down in the first step of a run, in client order."""
    Listen.heard.clear()
    train(scheme, model=model, clients=clients, cut=0, rounds=1, local_steps=1, backend="loop", **more)
    assert len(Listen.heard) == len(clients)
    return list(Listen.heard)


@pytest.mark.parametrize("batchnorm", [False, True])
def test_what_mergesfl_sends_down(batchnorm: bool) -> None:
    """The gradient of the summed loss of all rows over d_j; without BatchNorm that of a client's own mean loss."""
    model = listening(batchnorm)
    clients = small_clients((24, 24, 24))
    devices = [cl.Device(seconds=s, kbps=1e9) for s in (0.01, 0.02, 0.05)]
    heard = cut_gradients("mergesfl", model, clients, profile=devices, batch_size=8)
    d = [len(rows) for rows in heard]
    assert d == [14, 7, 3]  # 24 rows, as 1/0.01 to 1/0.02 to 1/0.05
    front, back = model[0], nn.Sequential(*list(model)[1:])
    x = [front(rows[:d_j]).detach().requires_grad_() for (rows, _), d_j in zip(clients, d, strict=True)]
    y = [labels[:d_j] for (_, labels), d_j in zip(clients, d, strict=True)]
    summed = functional.cross_entropy(back(torch.cat(x)), torch.cat(y), reduction="sum")
    of_all = [g / d_j for g, d_j in zip(torch.autograd.grad(summed, x), d, strict=True)]
    own = [torch.autograd.grad(functional.cross_entropy(back(x_j), y_j), x_j)[0] for x_j, y_j in zip(x, y, strict=True)]
    for ours, of_all_j, own_j in zip(heard, of_all, own, strict=True):
        assert float((ours - of_all_j).abs().max()) <= 1e-12
        assert (float((ours - own_j).abs().max()) <= 1e-12) is not batchnorm


@pytest.mark.parametrize("scheme", ["CyclePSL", "CycleSFL"])
def test_a_server_that_does_not_learn_sends_down_what_psl_does(scheme: str) -> None:
    """A frozen pass through the server as it was is the ordinary one; after learning it is not."""
    clients = small_clients((4, 8, 12))
    still, moving = cl.SGD(lr=1e-300, momentum=0.0, weight_decay=0.0), cl.SGD(lr=0.5, momentum=0.0, weight_decay=0.0)
    plain = cut_gradients("psl", listening(True), clients)
    for server, equal in ((still, True), (moving, False)):
        cycled = cut_gradients(getattr(cl, scheme)(), listening(True), clients, server_optimizer=server)
        for one, other in zip(plain, cycled, strict=True):
            assert (float((one - other).abs().max()) <= 1e-12) is equal
    untrained = cut_gradients(getattr(cl, scheme)(server_epochs=0), listening(True), clients)
    for one, other in zip(plain, untrained, strict=True):
        assert float((one - other).abs().max()) <= 1e-12


@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
@pytest.mark.parametrize("scheme", CYCLES)
def test_a_frozen_pass_moves_statistics_at_most(scheme: str, protocol: str) -> None:
    """Server parameters are the same bits whatever the mode; running statistics move if and only if it is "train".

    What they are without a frozen pass is computed here: the server phase alone, on the features of the first round.
    """
    clients, model = small_clients((6, 6, 6)), listening(True)
    more: dict[str, Any] = {"model": model, "clients": clients, "cut": 0, "rounds": 1, "batch_size": 6}
    more |= {"protocol": protocol, "local_epochs": 1, "optimizer": cl.SGD(lr=0.1, momentum=0.0, weight_decay=0.0)}
    frozen = {"optimizer": cl.SGD(lr=1e-300, momentum=0.0, weight_decay=0.0), "server_optimizer": more["optimizer"]}
    states = {
        mode: train(getattr(cl, scheme)(frozen_bn=mode), **more | frozen).model.state_dict()
        for mode in ("train", "no_update", "eval")
    }
    for name, w in model.named_parameters():
        assert all(torch.equal(state[name], states["train"][name]) for state in states.values())
        assert torch.allclose(w, states["train"][name], rtol=0, atol=1e-12) is name.startswith("0.")
    back = nn.Sequential(*list(listening(True))[1:])
    optimizer = torch.optim.SGD(back.parameters(), lr=0.1)
    for x, y in clients:
        optimizer.zero_grad()
        functional.cross_entropy(back(model[0](x).detach()), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    statistics = dict(back[0][1].named_buffers())  # type: ignore[index]
    for mode, state in states.items():
        for name, expected in statistics.items():
            same = torch.allclose(state[f"1.1.{name}"].double(), expected.double(), rtol=0, atol=1e-12)
            assert same is (mode != "train")


# ---- What always holds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "protocol"),
    [*((scheme, "smofi") for scheme in NEW_SCHEMES), *((scheme, "cyclesl") for scheme in NEW_SCHEMES[1:])],
)
def test_weights_that_sum_to_one(scheme: str, protocol: str) -> None:
    """Where no gradient pulls, the mean of equal models is that model, round after round."""
    still: dict[str, Any] = {"optimizer": cl.SGD(0.1, 0.9, 0.0), "loss": lambda out, y: 0 * out.sum()}
    result = train(scheme, participation=0.6, rounds=3, protocol=protocol, shuffle=True, **still)
    for model in (result.model, *result.clients):
        for (name, w), start in zip(model.named_parameters(), small_model().parameters(), strict=True):
            torch.testing.assert_close(w, start, rtol=0, atol=1e-14, msg=name)


PULLS = [cl.FedAvgM(beta=0.5), cl.SlowMo(lr=1.0, beta=0.6)]


@pytest.mark.parametrize(
    ("scheme", "update"),
    [
        *(("fedavg", update) for update in [cl.FedNAG(), *PULLS]),
        *((scheme, PULLS[0]) for scheme in NEW_SCHEMES if not scheme.endswith("ssl")),
        *((scheme, None) for scheme in ("ssl", "cyclessl")),
    ],
    ids=str,
)
def test_variances_stay_above_zero(scheme: str, update: Any) -> None:
    """Inputs of tiny variance pull running_var from 1 to almost 0: momentum on it would shoot below."""
    given: dict[str, Any] = {"clients": [(1e-3 * x, y) for x, y in small_clients(SIZES)], "cut": 0, "rounds": 3}
    given |= {"model": small_model(bn_momentum=0.3), "optimizer": SGD, "batch_size": 4, "local_epochs": 2}
    run = cl.rounds(**given, scheme=scheme, update=update)
    seen = [min(float(t.min()) for name, t in run.model.state_dict().items() if "running_var" in name) for _ in run]
    assert seen[-1] < 0.1
    assert min(seen) > 0


# ---- One neuron on each side (CycleSL, section 3.2.1) ------------------------------------------------------------


def neuron(w_c: float, w_s: float) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.fill_(w_c)  # type: ignore[operator]
        model[1].weight.fill_(w_s)  # type: ignore[operator]
    return model


def squared(out: Tensor, y: Tensor) -> Tensor:
    return ((out - y) ** 2).mean()


@pytest.mark.parametrize("protocol", ["smofi", "cyclesl"])
@pytest.mark.parametrize("gap", [0.3, 0.1, 0.01, 0.001])
def test_the_client_step_shrinks_near_convergence(gap: float, protocol: str) -> None:
    """w_s w_c x is above y by `gap`: the updated server asks for a smaller step of the client than the old one did."""
    w_c, w_s, x, eta = 1.3, 0.8, 0.9, 0.05
    y = w_s * w_c * x - gap
    clients = [(torch.tensor([[x]], dtype=torch.float64), torch.tensor([[y]], dtype=torch.float64))]
    more: dict[str, Any] = {"clients": clients, "cut": 0, "rounds": 1, "batch_size": 1, "local_epochs": 1}
    more |= {"optimizer": cl.SGD(lr=eta, momentum=0.0, weight_decay=0.0), "loss": squared, "protocol": protocol}
    new_s = w_s - 2 * eta * w_c * x * (w_s * w_c * x - y)
    old_step, new_step = (2 * eta * w * x * (w * w_c * x - y) for w in (w_s, new_s))
    assert 0 < new_step < old_step
    steps = {}
    for scheme in ("ssl", "psl", "cyclessl", "cyclepsl", "cyclesfl"):
        end = train(scheme, model=neuron(w_c, w_s), **more).model.state_dict()
        assert float(end["1.weight"]) == pytest.approx(new_s, abs=1e-12)
        steps[scheme] = w_c - float(end["0.weight"])
    assert steps["ssl"] == pytest.approx(old_step, abs=1e-12) == steps["psl"]
    for scheme in ("cyclessl", "cyclepsl", "cyclesfl"):
        assert steps[scheme] == pytest.approx(new_step, abs=1e-12)
        assert 0 < steps[scheme] < steps["ssl"]


@pytest.mark.parametrize("loss_weight", ["samples", "uniform"])
def test_a_loss_of_ones_own_is_weighted_sample_by_sample(loss_weight: Literal["samples", "uniform"]) -> None:
    """Two clients of 2 and 6 samples send two rows each into one server batch."""
    rows = [torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[3.0], [0.5]] * 3).double()]
    aims = [torch.tensor([[0.3], [1.1]]).double(), torch.tensor([[2.0], [0.1]] * 3).double()]
    scheme = cl.CyclePSL(server_batch=4, loss_weight=loss_weight)
    more: dict[str, Any] = {"cut": 0, "rounds": 1, "batch_size": 2, "local_steps": 1, "loss": squared}
    sgd = cl.SGD(lr=0.01, momentum=0.0, weight_decay=0.0)
    end = train(scheme, model=neuron(1.3, 0.8), clients=list(zip(rows, aims, strict=True)), optimizer=sgd, **more)
    w = [2.0, 2.0, 6.0, 6.0] if loss_weight == "samples" else [1.0] * 4
    sent = [
        (1.3 * float(x), float(y))
        for rows_j, aims_j in zip(rows, aims, strict=True)
        for x, y in zip(rows_j[:2], aims_j[:2], strict=True)
    ]
    slope = sum(w_s * 2 * a * (0.8 * a - y) for w_s, (a, y) in zip(w, sent, strict=True)) / sum(w)
    assert float(end.model.state_dict()["1.weight"]) == pytest.approx(0.8 - 0.01 * slope, abs=1e-12)
