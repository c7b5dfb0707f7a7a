"""Pickles of plain data, read without running anything in them.

Accepted are None, booleans, numbers, strings, bytes, lists, tuples, dicts, sets, and NumPy's arrays, scalars and dtypes
of numbers and strings. Everything else is refused. Python 2's strings stay bytes; arrays are read-only views of the
file's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlayer.data.read.plain_names import CALLS, Name, RefusedPickle, Unbuilt, bracket, build, known, scalar, whole
from cutlayer.data.read.plain_operations import operations
from cutlayer.errors import ContractError

DAMAGE = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


def loads(data: bytes, where: object) -> Any:
    """Return what a pickle holds; `where`: what errors call it."""
    machine = _Machine(len(data))
    try:
        for operation, argument in operations(data):
            machine.step(operation, argument)
        return whole(machine.top(1))[0]
    except RefusedPickle as error:
        raise ContractError(f"{where}: a pickle that holds more than plain data: {error}") from error
    except DAMAGE as error:
        raise ContractError(f"{where}: not a whole pickle: {type(error).__name__}: {error}") from error


def _set(items: Sequence[Any]) -> set[Any]:
    return {scalar(item) for item in items}


def _dict(items: Sequence[Any]) -> dict[Any, Any]:
    """Make a dict of alternating keys and values."""
    return {scalar(key): value for key, value in zip(items[::2], whole(items)[1::2], strict=True)}


class _Machine:
    """The stack machine that executes a pickle's operations."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.room = size  # bytes or members that calls may still make: in all no more than the bytes of the file

    def step(self, operation: str, argument: Any) -> None:
        """Execute an operation that moves items on the stack; `make` executes those that create an item."""
        match operation:
            case "PUSH":
                self.stack.append(argument)
            case "PUT":
                self.keep(argument)
            case "MEMOIZE":
                self.keep(len(self.memo))
            case "GET":
                self.stack.append(self.memo[argument])
            case "MARK":
                self.marks.append(len(self.stack))
            case "POP" if self.marks and self.marks[-1] == len(self.stack):
                self.marks.pop()
            case "POP":
                self.top(1)
            case "POP_MARK":
                self.marked()
            case "DUP":
                self.stack.append(self.stack[-1])
            case "APPEND" | "APPENDS":
                items = whole(self.top(1) if operation == "APPEND" else self.marked())
                self.stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                pairs = _dict(self.top(2) if operation == "SETITEM" else self.marked())
                self.stack[-1].update(pairs)
            case "ADDITEMS":
                members = _set(self.marked())
                self.stack[-1].update(members)
            case "PROTO" | "FRAME":
                pass
            case _:
                self.stack.append(self.make(operation, argument))

    def make(self, operation: str, argument: Any) -> Any:
        match operation:
            case "EMPTY_LIST":
                return []
            case "EMPTY_DICT":
                return {}
            case "EMPTY_SET":
                return set()
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                return bracket(self.top(int(operation[-1])))
            case "TUPLE":
                return bracket(self.marked())
            case "LIST":
                return list(whole(self.marked()))
            case "DICT":
                return _dict(self.marked())
            case "FROZENSET":
                return frozenset(_set(self.marked()))
            case "GLOBAL":
                return known(*argument.split(" ", 1))
            case "STACK_GLOBAL":
                return known(*map(str, self.top(2)))
            case "REDUCE":
                return self.call(*self.top(2))
            case "BUILD":
                return self.build(*self.top(2))
        raise RefusedPickle(f"operation {operation}")

    def top(self, count: int) -> list[Any]:
        """Take the last items off the stack."""
        if len(self.stack) < count:
            raise IndexError("nothing left to take")
        return self.cut(len(self.stack) - count)

    def marked(self) -> list[Any]:
        """Take the items since the last mark off the stack."""
        return self.cut(self.marks.pop())

    def cut(self, start: int) -> list[Any]:
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def keep(self, slot: int) -> None:
        item = self.memo[slot] = self.stack[-1]
        if isinstance(item, Unbuilt):
            item.slots.append(slot)

    def call(self, name: Any, arguments: Any) -> Any:
        if not isinstance(name, Name) or name.name not in CALLS or not isinstance(arguments, tuple):
            raise RefusedPickle("a call of data")
        made = CALLS[name.name](*arguments)
        self.room -= len(made) if isinstance(made, bytes | set | frozenset) else 0
        if self.room < 0:
            raise RefusedPickle("it makes more than it holds")
        return made

    def build(self, unbuilt: Any, state: Any) -> Any:
        if not isinstance(unbuilt, Unbuilt):
            raise RefusedPickle("state given to data")
        built = build(unbuilt, state)
        self.memo.update(dict.fromkeys(unbuilt.slots, built))
        return built
