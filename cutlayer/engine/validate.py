"""Which parts go together. A combination without a meaning is refused, with the reason, before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cutlayer.errors import ContractError, expect, unknown
from cutlayer.optim.local import Local, clips_regularised, joint
from cutlayer.optim.lr_schedule import LRSchedule
from cutlayer.optim.optimizer import Optimizer
from cutlayer.optim.update import Update, buffers_of, half_of
from cutlayer.schemes.base import Scheme

PROTOCOLS = ("smofi", "cyclesl")
LABELS = ("send", "stay")


def brought(update: Update, optimizer: Optimizer) -> Optimizer:
    """Return the given optimizer, or the one that the update brings in its place."""
    bring = getattr(update, "optimizer", None)
    made: Optimizer = optimizer if bring is None else bring(optimizer)
    return made


@dataclass(frozen=True)
class Parts:
    """The parts that make up a training."""

    scheme: Scheme
    local: Local | None
    update: Update
    optimizer: Optimizer
    server_optimizer: Optimizer
    lr_schedule: LRSchedule | None = None
    calibrate: float = 0.0


def refuse_senseless(parts: Parts, protocol: str, redrawn_cut: bool, labels: str = "send") -> None:
    """Raise where the parts contradict each other."""
    scheme, local, update = parts.scheme, parts.local, parts.update
    optimizer, server_optimizer = parts.optimizer, parts.server_optimizer
    if local is not None:
        _local(scheme, local, (optimizer, server_optimizer))
    if buffers_of(update) == "average":
        _averaged_memory(scheme, update, optimizer, server_optimizer, protocol)
    by_step = parts.lr_schedule is not None and parts.lr_schedule.by_step
    if by_step and getattr(update, "in_units_of_eta", False):
        raise ContractError(
            f"lr_schedule = {parts.lr_schedule}: {update} counts in units of the round's learning rate, and this one "
            "changes within a round; expected a schedule by round"
        )
    if scheme.traits.fuses_clients:
        if not optimizer.remembers:
            raise ContractError(f"scheme = {scheme}: there is no momentum to fuse on the clients with {optimizer}")
        if protocol == "cyclesl" and scheme.traits.common_steps:
            raise ContractError(
                f"scheme = {scheme}: in protocol 'cyclesl' each client's step counter is its own, so clients' stale "
                "moments have no common correction; expected rebias_history=False"
            )
    if parts.calibrate:
        _calibrated(scheme, parts.calibrate, labels)
    if redrawn_cut:
        _redrawn(scheme, protocol)
    if half_of(parts.update) == "front" and scheme.traits.carry == "keep":
        raise ContractError(
            f"update = {parts.update}: with {scheme} clients keep their fronts; expected no half, or 'back'"
        )
    if labels not in LABELS:
        raise unknown("labels", labels, LABELS)
    if labels == "stay":
        _staying(scheme)


def refuse_inside(threads: int, device: torch.device) -> None:
    """Refuse several threads inside an operation that a GPU computes."""
    words = f"1: on {device} the device computes, and one thread feeds it"
    expect(threads == 1 or device.type == "cpu", "torch_threads", threads, words)


def _local(scheme: Scheme, local: Local, optimizers: tuple[Optimizer, ...]) -> None:
    if joint(local) and not scheme.traits.own_gradient:
        raise ContractError(
            f"local = {local}: a joint norm needs a server gradient that belongs to one client, and {scheme} has none; "
            "expected norm='half'"
        )
    decoupled = [o for o in optimizers if o.decoupled and getattr(o, "weight_decay", 0) > 0]
    if decoupled and clips_regularised(local):
        raise ContractError(
            f"local = {local}: it clips gradient and weight decay together, and {decoupled[0]} keeps its decay out of "
            "the gradient; expected adam, or weight_decay 0"
        )


def _averaged_memory(
    scheme: Scheme, update: Update, optimizer: Optimizer, server_optimizer: Optimizer, protocol: str
) -> None:
    if protocol != "smofi":
        raise ContractError(
            f"update = {update}: it averages the clients' momentum every round, and protocol {protocol!r} leaves each "
            "client its own; expected protocol 'smofi'"
        )
    if scheme.traits.carry != "sync" or not scheme.traits.separate:
        raise ContractError(
            f"update = {update}: it averages the momentum of every client's whole model over the round, and {scheme} "
            "does not keep one for each client from the round's start to its end; expected scheme 'fedavg'"
        )
    for each in (optimizer, server_optimizer):
        if not each.remembers:
            raise ContractError(f"update = {update}: it averages momentum, and {each} has none; expected momentum")
    if optimizer.moments != server_optimizer.moments:
        raise ContractError(
            f"update = {update}: it averages whole models' momentum; expected one kind of optimizer on both sides, "
            f"got {optimizer} and {server_optimizer}"
        )


def _staying(scheme: Scheme) -> None:
    if scheme.traits.needs_labels == "rows":
        raise ContractError(
            f"labels = 'stay': {scheme} trains the server by itself on features and labels of all clients, so it needs "
            "the labels there; expected labels 'send', or another scheme"
        )
    if scheme.traits.needs_labels == "loss":
        raise ContractError(
            f"labels = 'stay': {scheme} looks at the clients' losses, which only they know then; expected labels "
            "'send', or another scheme"
        )
    if scheme.traits.needs_labels == "counts":
        raise ContractError(
            f"labels = 'stay': {scheme} chooses clients by their label counts, which the server would have to know; "
            "expected select='random'"
        )


def _calibrated(scheme: Scheme, tau: float, labels: str) -> None:
    if labels == "stay":
        raise ContractError(f"calibrate = {tau:g}: the server must see the labels; expected labels 'send'")
    if scheme.traits.meets == "batch" or scheme.traits.needs_labels == "rows":
        raise ContractError(
            f"calibrate = {tau:g}: under {scheme} a batch of the server has rows of several clients, and each of them "
            "has label frequencies of its own; expected another scheme, or calibrate 0"
        )


def _redrawn(scheme: Scheme, protocol: str) -> None:
    why = None
    if scheme.traits.carry == "keep":
        why = f"with {scheme} clients keep their half"
    elif protocol == "cyclesl":
        why = "protocol 'cyclesl' keeps optimizer memory"
    elif scheme.traits.persists:
        why = f"{scheme} keeps the server's momentum"
    if why is not None:
        raise ContractError(f"cut: it cannot be redrawn every round, since {why} between rounds; expected one number")
