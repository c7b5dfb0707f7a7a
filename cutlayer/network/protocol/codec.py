"""A plan as plain words and tensors, and back: what a client on another machine is told. Of a plan's parts only those
that are known by name travel, with their numbers; a client builds its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

import msgspec
from torch import Tensor

from cutlayer.clients.messages import Address, Loss, Plan
from cutlayer.data.schedule import BatchSchedule
from cutlayer.errors import ContractError, FrameError
from cutlayer.nn.flat import Vectors
from cutlayer.optim.local import Local, combined, parts_of
from cutlayer.optim.memory import Moments
from cutlayer.optim.optimizer import Optimizer
from cutlayer.registry import LOCALS, OPTIMIZERS, Part

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An optimizer or a local rule."""

    name: str
    numbers: dict[str, float | str | bool | tuple[float, ...]]


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan without its tensors; `moments`: how many there are of the optimizer's memory, `t` steps old."""

    round: Count
    client: Count
    attempt: Count
    cut: Count
    schedule: dict[str, int | bool | str | None]
    optimizer: Spec
    eta: float
    local: tuple[Spec, ...]
    noise: float
    stays: bool
    starts: bool
    moments: Count
    t: Count
    shares_memory: bool
    keeps_half: bool
    keeps_memory: bool
    fuses: bool
    confirmed: Count


def encode(plan: Plan) -> tuple[dict[str, Any], list[Tensor]]:
    """A plan's words and tensors."""
    start, memory = list(plan.start or ()), plan.memory
    orders = Orders(
        round=plan.address.round,
        client=plan.address.client,
        attempt=plan.address.attempt,
        cut=plan.cut,
        schedule=asdict(plan.schedule),
        optimizer=_spec(plan.optimizer, OPTIMIZERS, "optimizer"),
        eta=plan.eta,
        local=tuple(_spec(rule, LOCALS, "local") for rule in parts_of(plan.local)),
        noise=plan.noise,
        stays=plan.loss is not None,
        starts=plan.start is not None,
        moments=0 if memory is None else len(memory.m),
        t=0 if memory is None else memory.t,
        shares_memory=plan.shares_memory,
        keeps_half=plan.keeps_half,
        keeps_memory=plan.keeps_memory,
        fuses=plan.fuses,
        confirmed=plan.confirmed,
    )
    return msgspec.to_builtins(orders), [*start, *(memory.m if memory else ())]


def decode(words: dict[str, Any], tensors: Sequence[Tensor], loss: Loss | None) -> Plan:
    """The plan again. `loss`: the client's own, for labels that stay."""
    try:
        o = msgspec.convert(words, Orders)
        schedule = msgspec.convert(asdict(BatchSchedule(**o.schedule)), BatchSchedule)  # type: ignore[arg-type]  # its names, then their types
        optimizer = _built(o.optimizer, OPTIMIZERS, "optimizer")
        local = combined([_built(rule, LOCALS, "local") for rule in o.local])
    except (msgspec.ValidationError, TypeError, ContractError) as error:
        raise FrameError(f"a plan that cannot be: {error}") from error
    expected = 3 * o.starts + o.moments
    if len(tensors) != expected or o.moments not in (0, optimizer.moments):
        raise FrameError(f"a plan with {len(tensors)} tensors, where {expected} were announced")
    rest = tensors[3 * o.starts :]
    return Plan(
        address=Address(o.round, o.client, -1, o.attempt),
        cut=o.cut,
        start=Vectors(*tensors[:3]) if o.starts else None,
        schedule=schedule,
        optimizer=optimizer,
        eta=o.eta,
        local=local,
        noise=o.noise,
        loss=loss if o.stays else None,
        memory=Moments(tuple(rest), o.t) if rest else None,
        shares_memory=o.shares_memory,
        keeps_half=o.keeps_half,
        keeps_memory=o.keeps_memory,
        fuses=o.fuses,
        confirmed=o.confirmed,
    )


def sendable(optimizer: Optimizer, local: Local | None) -> None:
    """Refuse parts that no client could build."""
    _spec(optimizer, OPTIMIZERS, "optimizer")
    for rule in parts_of(local):
        _spec(rule, LOCALS, "local")


def _spec(part: Any, table: Mapping[str, Part], field: Literal["optimizer", "local"]) -> Spec:
    name = next((name for name, known in table.items() if known.make is type(part)), None)
    if name is None:
        raise ContractError(f"{field} = {part}: a client elsewhere cannot build it; expected one of {', '.join(table)}")
    numbers = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "decay"}  # eta says what it comes to
    return Spec(name, numbers)


def _built(spec: Spec, table: Mapping[str, Part], field: str) -> Any:
    if spec.name not in table:
        raise FrameError(f"a plan whose {field} is {spec.name!r}; expected one of {', '.join(table)}")
    return table[spec.name].make(**spec.numbers)
