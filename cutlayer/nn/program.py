"""A model's forward as a list of operations, found by torch.fx, and blocks that carry out parts of the list.

Submodules that are not traced into are single operations, so a model may do inside them what torch.fx cannot follow. A
forward may depend on the mode (`self.training`), so there are two lists, one for training and one for inference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import fx, nn
from torch.fx.node import map_aggregate

from cutlayer.errors import ContractError
from cutlayer.nn.nested import Inputs

Kind = Literal["input", "module", "function", "method", "attribute", "output"]
KINDS: dict[str, Kind] = {
    "placeholder": "input",
    "call_module": "module",
    "call_function": "function",
    "call_method": "method",
    "get_attr": "attribute",
    "output": "output",
}
Follow = Callable[[nn.Module, str], bool]
"""(module, its path) -> whether to trace into it."""


@dataclass(frozen=True)
class Value:
    """Stands for the result of an operation among the arguments of a later one."""

    name: str


@dataclass(frozen=True)
class Operation:
    """One operation: what it calls, with which arguments, and the submodules whose output its result is."""

    name: str
    kind: Kind
    target: Any
    args: Any
    kwargs: Any
    ends: tuple[str, ...] = ()

    @property
    def uses(self) -> list[str]:
        """The values that it takes."""
        found: list[str] = []
        map_aggregate((self.args, self.kwargs), lambda x: found.append(x.name) if isinstance(x, Value) else None)
        return found

    def __deepcopy__(self, memo: object) -> Operation:
        return self

    def __call__(self, root: nn.Module, values: Mapping[str, Any]) -> Any:
        def fetched(x: Any) -> Any:
            return values[x.name] if isinstance(x, Value) else x

        if self.kind == "attribute":
            return attribute(root, self.target)
        args, kwargs = map_aggregate(self.args, fetched), map_aggregate(self.kwargs, fetched)
        if self.kind == "module":
            return root.get_submodule(self.target)(*args, **kwargs)
        if self.kind == "method":
            first, *rest = args
            return getattr(first, self.target)(*rest, **kwargs)
        return self.target(*args, **kwargs)


class Untraceable(Exception):
    """torch.fx cannot follow a submodule's forward."""

    def __init__(self, path: str, why: Exception) -> None:
        super().__init__(f"{type(why).__name__}: {why}")
        self.path = path


class _Tracer(fx.Tracer):
    """torch.fx's tracer. It notes which values are the outputs of which submodules, and where it fails."""

    def __init__(self, inputs: Sequence[str], whole: bool, follow: Follow) -> None:
        super().__init__()
        self.inputs, self.whole, self.follow = inputs, whole, follow
        self.ends: dict[str, list[str]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not self.follow(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        given = {name: self.create_proxy("placeholder", name, (), {}) for name in self.inputs}

        def call(root: nn.Module) -> Any:
            if self.whole:
                return root_fn(root, given if len(given) > 1 else next(iter(given.values())))
            return root_fn(root, **given)

        return call, [self.root]

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        path = self.path_of_module(m)
        try:
            out = super().call_module(m, forward, args, kwargs)
        except Untraceable:
            raise
        except Exception as error:  # a user's forward may raise anything once its inputs are not tensors
            raise Untraceable(path, error) from error
        if isinstance(out, fx.Proxy):
            self.ends.setdefault(out.node.name, []).append(path)
        return out


def traced(model: nn.Module, inputs: Sequence[str], whole: bool, follow: Follow) -> list[Operation]:
    """Return the operations of a model's forward in its present mode.

    `inputs`: their names. `whole`: they are passed as one argument, and not by name.
    """
    opaque: set[str] = set()  # submodules that torch.fx cannot follow
    while True:
        tracer = _Tracer(inputs, whole, lambda m, path: path not in opaque and follow(m, path))
        try:
            graph = tracer.trace(model)
        except Untraceable as error:
            if error.path in opaque:
                raise
            opaque.add(error.path)
            continue
        except Exception as error:
            raise Untraceable("", error) from error
        return [_operation(node, tracer.ends.get(node.name, ())) for node in graph.nodes]


def _operation(node: fx.Node, ends: Iterable[str]) -> Operation:
    def value(x: Any) -> Any:
        return Value(x.name) if isinstance(x, fx.Node) else x

    args, kwargs = map_aggregate(node.args, value), map_aggregate(node.kwargs, value)
    return Operation(node.name, KINDS[node.op], node.target, args, kwargs, tuple(ends))


def attribute(root: nn.Module, path: str) -> Any:
    found: Any = root
    for name in path.split("."):
        found = getattr(found, name)
    return found


@dataclass(frozen=True)
class Part:
    """Some operations in a row: the values they take and give, and what can be forgotten after each."""

    operations: tuple[Operation, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    spent: tuple[tuple[str, ...], ...] = field(default=())

    @classmethod
    def of(cls, operations: Sequence[Operation], takes: Sequence[str], gives: Sequence[str]) -> Part:
        last: dict[str, int] = dict.fromkeys(takes, -1)
        for place, operation in enumerate(operations):
            last |= dict.fromkeys((operation.name, *operation.uses), place)
        spent: list[list[str]] = [[] for _ in operations]
        for name, place in last.items():
            if name not in gives and place >= 0:
                spent[place].append(name)
        return cls(tuple(operations), tuple(takes), tuple(gives), tuple(map(tuple, spent)))

    def __deepcopy__(self, memo: object) -> Part:
        return self


class Segment(nn.Module):
    """A block of a model: some of its operations, with the submodules and parameters that these use, under their own
    names. It takes and gives one tensor, or several by name."""

    def __init__(self, model: nn.Module, training: Part, inference: Part) -> None:
        super().__init__()
        self.parts = {True: training, False: inference}
        for operation in (*training.operations, *inference.operations):
            if operation.kind in ("module", "attribute"):
                _hold(self, model, operation.target)

    def extra_repr(self) -> str:
        """The operations, so that blocks with the same parameters can be told apart."""
        return "; ".join(
            f"{o.name} = {getattr(o.target, '__name__', o.target)}({', '.join(o.uses)})"
            for o in self.parts[True].operations
        )

    def forward(self, x: Inputs) -> Any:
        part = self.parts[self.training]
        values: dict[str, Any] = {part.takes[0]: x}
        if isinstance(x, Mapping):
            values = {name: x[name] for name in part.takes} if set(part.takes) <= x.keys() else _renamed(x, part.takes)
        for operation, spent in zip(part.operations, part.spent, strict=True):
            values[operation.name] = operation(self, values)
            for name in spent:
                values.pop(name, None)
        if len(part.gives) == 1:
            return values[part.gives[0]]
        return {name: values[name] for name in part.gives}


def _renamed(x: Mapping[str, Any], takes: Sequence[str]) -> dict[str, Any]:
    """Return several tensors under the names that a part has for them in this mode; their order is the same."""
    if len(x) != len(takes):
        raise ContractError(f"a block takes {', '.join(takes)}, and was given {', '.join(x)}")
    return dict(zip(takes, x.values(), strict=True))


def _hold(holder: nn.Module, model: nn.Module, path: str) -> None:
    """Register a submodule, parameter or buffer of the model under the same path in the holder."""
    *outer, name = path.split(".")
    theirs: nn.Module = model
    for step in outer:
        theirs = getattr(theirs, step)
        if step not in holder._modules:
            holder.add_module(step, nn.Module())
        holder = holder.get_submodule(step)
    found = getattr(theirs, name)
    if holder is theirs or getattr(holder, name, None) is found:
        return  # it is already held, by itself or with the submodule around it
    if isinstance(found, nn.Module):
        holder.add_module(name, found)
    elif isinstance(found, nn.Parameter):
        holder.register_parameter(name, found)
    elif name in theirs._buffers:
        holder.register_buffer(name, found, persistent=name not in theirs._non_persistent_buffers_set)
    else:
        setattr(holder, name, found)
