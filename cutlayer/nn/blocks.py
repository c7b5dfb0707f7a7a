"""Any model as blocks: find the places where it can be cut, and cut it there.

A place is a point in the order of a forward's operations. The model can be cut there if one tensor with a gradient
crosses it: whatever comes later needs that tensor, and besides only inputs or what was made of them without parameters
(a mask, lengths). Inside a skip connection two tensors with a gradient cross.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cutlayer.core.randomness import OwnRandomness
from cutlayer.errors import NEAR, ContractError, expect
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import Blocks, has_blocks
from cutlayer.nn.layered import inner, is_layered, layered, refuse_hidden_padding
from cutlayer.nn.nested import Inputs, each, length
from cutlayer.nn.program import Operation, Part, Segment, Untraceable, attribute, traced

HINT = "; expected a model whose forward torch.fx can follow, an nn.Sequential, or a module with `blocks`"
SHOWN = 8  # names in an error message, at most


@dataclass(frozen=True)
class Crossing:
    """What crosses a place: the names of the values that are needed later, and why the model cannot be cut there."""

    names: tuple[str, ...]
    why: str = ""


class Forward:
    """The operations of a model in one mode, and what each of them gives on a few rows."""

    def __init__(self, model: nn.Module, operations: Sequence[Operation], x: Mapping[str, Tensor]) -> None:
        *self.operations, self.output = operations
        self.order = {operation.name: place for place, operation in enumerate(self.operations)}
        self.inputs = [o.name for o in self.operations if o.kind == "input"]
        self.constant: set[str] = set()
        for o in self.operations:  # what depends on no input is computed again wherever it is needed
            fixed = o.kind == "attribute" or (o.kind == "function" and all(name in self.constant for name in o.uses))
            if fixed and o.name not in self.inputs:
                self.constant.add(o.name)
        self.values, self.rows = self._run(model, x), length(dict(x))
        self.learned = self._depend_on_weights(model)
        self.raw = set(self.inputs[:1])  # what the first input can be read off: itself, and what depends on it
        for o in self.operations:
            if self.raw & set(o.uses):
                self.raw.add(o.name)
        self.last_use: dict[str, int] = {}
        for place, o in enumerate(operations):
            self.last_use |= {name: place for used in o.uses for name in self._needs(used)}

    def _needs(self, name: str) -> Iterable[str]:
        """The values that are needed to have this one at another place: itself, unless it is constant."""
        return () if name in self.constant else (name,)

    def _run(self, model: nn.Module, x: Mapping[str, Tensor]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for o in self.operations:
            given = x[str(o.target)].clone() if o.kind == "input" else o(model, values)
            values[o.name] = given.clone() if isinstance(given, Tensor) and o.kind != "attribute" else given
        return values

    def _depend_on_weights(self, model: nn.Module) -> set[str]:
        """The values that depend on trainable parameters, and so have a gradient."""
        found: set[str] = set()
        for o in self.operations:
            mine: list[Any] = []
            if o.kind == "module":
                mine = list(model.get_submodule(o.target).parameters())
            elif o.kind == "attribute":
                mine = [attribute(model, o.target)]
            if any(isinstance(p, Tensor) and p.requires_grad for p in mine) or found & set(o.uses):
                found.add(o.name)
        return found

    def crossing(self, place: int) -> Crossing:
        """What crosses after the operation at this place."""
        names = tuple(o.name for o in self.operations[: place + 1] if self.last_use.get(o.name, -1) > place)
        if not names:
            return Crossing(names, "nothing crosses it")
        learned = [name for name in names if name in self.learned]
        floating = [name for name in learned or names if self._floating(name)]
        said = ", ".join(self._said(name) for name in names)
        if len(learned) > 1:
            return Crossing(names, f"{said} cross it, more than one of them with a gradient")
        if not floating or (learned and learned != floating):
            return Crossing(names, f"{said} cross{'es' * (len(names) == 1)} it, and no floating tensor with a gradient")
        first = floating[-1]
        others = tuple(name for name in names if name != first)
        for name in others:
            value = self.values[name]
            if not isinstance(value, Tensor) or not value.ndim or len(value) != self.rows:
                return Crossing(names, f"{said} cross it, and {name} has no row for each sample")
            if name in self.raw and value.nbytes >= self.values[self.inputs[0]].nbytes:
                return Crossing(names, f"{said} cross it: with {name}, the input itself would leave the client")
        return Crossing((first, *others))

    def _floating(self, name: str) -> bool:
        value = self.values[name]
        return isinstance(value, Tensor) and value.is_floating_point()

    def _said(self, name: str) -> str:
        """A value for people: the submodule that it comes from, and its shape."""
        o, value = self.operations[self.order[name]], self.values[name]
        shape = f" {tuple(value.shape[1:])}" if isinstance(value, Tensor) else f" ({type(value).__name__})"
        return f"{o.ends[-1] if o.ends else name}{shape}"

    def part(self, start: int, stop: int) -> Part:
        """The operations after place `start`, up to and with `stop`."""
        inside = [o for o in self.operations[start + 1 : stop + 1] if o.kind != "input"]
        takes = self.crossing(start).names if start >= 0 else tuple(self.inputs)
        last = stop == len(self.operations) - 1
        gives = tuple(self.output.uses) if last else self.crossing(stop).names
        here = {o.name for o in inside}
        wanted = [name for o in inside for name in o.uses] + list(gives)
        again: list[Operation] = []
        while wanted:
            name = wanted.pop()
            if name in self.constant and name not in here:
                here.add(name)
                again.append(self.operations[self.order[name]])
                wanted += again[-1].uses
        again.sort(key=lambda o: self.order[o.name])
        return Part.of([*again, *inside], takes, gives)


def blocks(model: nn.Module, at: Sequence[str] | None = None, example: Any = None) -> Blocks:
    """Return a model as blocks, so that it can be cut: `cl.blocks(net, at=["layer1", "layer3"], example=x)`.

    at        the submodules after which a block ends, by name; None: every place where one tensor passes. At a place
              that is named, others may cross beside it, without a gradient: a mask, lengths
    example   a few rows of inputs: a tensor, or several by the names that the model's forward has for them. A model of
              transformers needs none: its embeddings are the first block, each layer is one, its head is the last

    The blocks compute what the model computes, to the bit, and share its parameters. A trained model is of the model's
    own class again. With `at`, torch.fx traces only what lies around these submodules: one that no cut falls into may
    do anything.

    >>> import torch, cutlayer as cl
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.first, self.second, self.last = (torch.nn.Linear(4, 4) for _ in range(3))
    ...     def forward(self, x):
    ...         h = torch.relu(self.first(x))
    ...         return self.last(h + self.second(h))
    >>> cl.blocks(Net(), example=torch.zeros(2, 4)).names
    ['first', 'relu', 'add', 'last']
    """
    expect(isinstance(model, nn.Module), "model", type(model).__name__, "a torch.nn.Module")
    if is_layered(model):
        expect(at is None, "at", at, "None: this model has a block for each of its layers")
        return _layered(model, example)
    x = _example(example)
    expect(at is None or (not isinstance(at, str) and len(at) > 0), "at", at, "a list of names of submodules, or None")
    for name in at or ():
        expect(isinstance(name, str), "at", name, "names of submodules")
    names, whole = _inputs(model, x)
    forwards = {mode: _forward(model, mode, x, names, whole, at) for mode in (True, False)}
    places = _places(forwards, at)
    count = len(forwards[True].operations)
    ends = {mode: len(forward.operations) - 1 for mode, forward in forwards.items()}
    pairs = [*({True: place, False: _other(forwards, place)} for place in places), ends]
    segments, before = [], {True: -1, False: -1}
    for pair in pairs:
        parts = {mode: forwards[mode].part(before[mode], pair[mode]) for mode in pair}
        segments.append(Segment(model, parts[True], parts[False]))
        before = pair
    aliases = [_aliases(forwards[True].operations[place]) for place in (*places, count - 1)]
    made = Blocks(model, segments, aliases, whole)
    _refuse_unused(model, segments)
    _equal(made, x if len(x) > 1 or isinstance(example, Mapping) else next(iter(x.values())))
    return made


def _layered(model: nn.Module, example: Inputs | None) -> Blocks:
    """Return a model of transformers as blocks."""
    try:
        made, x = layered(model, example)
        _equal(made, x)
        refuse_hidden_padding(made, x)
    except ContractError:
        raise
    except Exception as error:  # a forward may do anything with what it is given
        words = f"its layers cannot be separated: {type(error).__name__}: {error}"
        raise ContractError(f"model = {type(inner(model)).__name__}: {words}") from error
    return made


def as_blocks(model: nn.Module, example: Inputs) -> nn.Module:
    """Return a model that has blocks as it is, and any other with a block up to every place where it can be cut."""
    return model if has_blocks(model) else blocks(model, example=example)


def _example(example: Any) -> dict[str, Tensor]:
    if isinstance(example, Mapping):
        named = {str(name): torch.as_tensor(value) for name, value in example.items()}
        expect(bool(named), "example", example, "at least one tensor")
        return named
    expect(isinstance(example, Tensor) and example.ndim > 0, "example", example, "a few rows of inputs")
    return {"": example}


def _inputs(model: nn.Module, x: Mapping[str, Tensor]) -> tuple[list[str], bool]:
    """Return the names of the inputs, and whether the model takes them as one argument."""
    taken = inspect.signature(model.forward).parameters
    if "" in x:
        return [next(iter(taken), "x")], True
    free = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    return list(x), not (free or x.keys() <= taken.keys())


def _forward(
    model: nn.Module, mode: bool, x: Mapping[str, Tensor], names: Sequence[str], whole: bool, at: Sequence[str] | None
) -> Forward:
    def follow(module: nn.Module, path: str) -> bool:
        if at is not None:
            return any(name.startswith(f"{path}.") for name in at)
        return isinstance(module, nn.Sequential) or not module.__module__.startswith("torch.nn")

    copy = twin(model).train(mode)
    try:
        operations = traced(copy, names, whole, follow)
    except Untraceable as error:
        where = f"{error.path} of {type(model).__name__}" if error.path else type(model).__name__
        raise ContractError(f"model = {where}: torch.fx cannot follow its forward: {error}{HINT}") from error
    given = dict(zip(names, x.values(), strict=True))
    with OwnRandomness(), torch.no_grad():
        return Forward(copy, operations, given)


def _aliases(operation: Operation) -> list[str]:
    """The names of the place after an operation: the submodules that end there, outermost first, or its own."""
    return [*reversed(operation.ends)] or [operation.name]


def _other(forwards: Mapping[bool, Forward], place: int) -> int:
    """Return the place in inference mode; -1 if there is none."""
    training, inference = forwards[True].operations, forwards[False].operations
    if [(o.kind, str(o.target)) for o in training] == [(o.kind, str(o.target)) for o in inference]:
        return place
    ends = set(training[place].ends)
    return next((p for p, o in enumerate(inference) if ends & set(o.ends)), -1)


def _places(forwards: Mapping[bool, Forward], at: Sequence[str] | None) -> list[int]:
    """Return the places to cut at, in order."""
    training = forwards[True]
    last = len(training.operations) - 1
    why: dict[int, str] = {}
    for place, o in enumerate(training.operations[:last]):
        if o.kind == "input" or o.name in training.constant:
            continue
        other = _other(forwards, place)
        reasons = [training.crossing(place).why]
        if other < 0:
            reasons.append("it is not there in inference mode")
        elif other < len(forwards[False].operations) - 1:
            reasons.append(forwards[False].crossing(other).why)
        why[place] = next((reason for reason in reasons if reason), "")
    fine = [place for place, reason in why.items() if not reason]
    single = [place for place in fine if len(training.crossing(place).names) == 1]
    named = {alias: place for place in why for alias in _aliases(training.operations[place])}
    if at is None:
        if not single:
            raise ContractError(
                "model: no place where one tensor passes, between two blocks; expected an nn.Sequential, or a model of "
                "several parts"
            )
        return single
    for name in at:
        if name not in named:
            raise _unknown(name, [_aliases(training.operations[place])[0] for place in fine])
        if why[named[name]]:
            raise ContractError(f"at = {name!r}: {why[named[name]]}; {_nearest(training, named[name], fine)}")
    return sorted({named[name] for name in at})


def _unknown(name: str, names: Sequence[str]) -> ContractError:
    near = difflib.get_close_matches(name, names, n=1, cutoff=NEAR)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return ContractError(f"at = {name!r}: no place of this name; {hint}places: {shown or 'none'}")


def _nearest(forward: Forward, place: int, fine: Sequence[int]) -> str:
    """Name the nearest places before and after one that cannot be cut."""
    before = [p for p in fine if p < place][-1:]
    after = [p for p in fine if p > place][:1]
    names = [_aliases(forward.operations[p])[0] for p in (*before, *after)]
    return f"the nearest places that work: {', '.join(names)}" if names else "no place works"


def _refuse_unused(model: nn.Module, segments: Sequence[nn.Module]) -> None:
    held = {id(p) for segment in segments for p in segment.parameters()}
    unused = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if unused:
        raise ContractError(
            f"model: its forward does not use {', '.join(unused[:SHOWN])}; expected no such parameters, or frozen ones"
        )


def _equal(made: Blocks, x: Inputs) -> None:
    """Refuse blocks that compute anything else than the model, in either mode."""
    expect(length(x) >= 1, "example", length(x), "at least one row")
    for mode in (True, False):
        copy = twin(made).train(mode)
        found: list[Any] = []
        for forward in (copy, copy.in_order):
            with OwnRandomness(), torch.no_grad():
                found.append(forward(each(x, torch.clone)))
            copy = twin(made).train(mode)
        one, other = found
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            raise ContractError(f"model: its output is a {type(one).__name__}; expected one tensor")
        if not torch.equal(one, other) and not bool((one.isnan() & other.isnan() | (one == other)).all()):
            words = "training" if mode else "inference"
            raise ContractError(f"model: in blocks, it computes something else in {words} mode{HINT}")
