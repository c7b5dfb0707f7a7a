"""Everything cutlayer raises on purpose.

CutlayerError
├── AuthError        the other end of a connection is not who it should be, or does not believe us
├── ClientError      a client's model, loss or data raised an error; it names round, client and step
├── ContractError    an argument, a model, data or a message is not what was agreed (a ValueError too)
│   └── FrameError   bytes from another machine are not what was agreed
├── Diverged         the loss or the weights are no longer finite
├── RankLost         another process of the run has ended, or fell silent
├── RoundAbandoned   no selected client finished the round; the weights are those before it
├── StoreError       a run directory cannot be read or written
└── TransportError   the other end of a connection cannot be reached
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable

NEAR = 0.6  # how alike two names must be for one to be suggested


class CutlayerError(Exception):
    """The root: catch this to catch all of them."""


class ContractError(CutlayerError, ValueError):
    """Something given breaks the contract; the message names it, its value and what was expected."""


class FrameError(ContractError):
    """Bytes from another machine that are not what they should be: nothing of them has been used."""


class ClientError(CutlayerError):
    """What a client computes with failed: a model's block, a loss, a data set. The cause is the error it raised."""


class AuthError(CutlayerError):
    """A certificate was refused, by us or by the other end."""


class Diverged(CutlayerError):
    """Training left the finite numbers."""


class RankLost(CutlayerError):
    """A run over several processes has lost one."""


class RoundAbandoned(CutlayerError):
    """A round could not be completed and changed nothing."""


class StoreError(CutlayerError):
    """A run directory is missing, damaged or in the way."""


class TransportError(CutlayerError):
    """Nobody answers, and we have waited long enough."""


class Restored(UserWarning):
    """A file was damaged; its copy is used, and it is written again."""


class NoEffect(UserWarning):
    """An option was given that changes nothing in this run."""


def kinds() -> dict[str, type[CutlayerError]]:
    """All of them by name."""
    found: dict[str, type[CutlayerError]] = {}
    todo = [CutlayerError]
    while todo:
        kind = todo.pop()
        found[kind.__name__] = kind
        todo += kind.__subclasses__()
    return found


def expect(truth: bool, field: str, value: object, expected: str) -> None:
    """Refuse `value` of `field` unless `truth`, saying what was expected."""
    if not truth:
        raise ContractError(f"{field} = {value!r}: expected {expected}")


def one_line(text: object) -> str:
    """Words on one line, fit for a terminal.

    >>> one_line("wrong:\\n   two\\n   \\x1b[31mthings")
    'wrong: two \\\\x1b[31mthings'
    """
    joined = " ".join(part.strip() for part in str(text).splitlines())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in joined)


def is_whole(value: object) -> bool:
    """A whole number, Python's or NumPy's; True is none."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def is_number(value: object) -> bool:
    """A finite real number, Python's or NumPy's; True is none."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


def unknown(what: str, name: object, valid: Iterable[str]) -> ContractError:
    """The error for a name that is not in a table, with the nearest one that is."""
    names = sorted(valid)
    spelled = {known.lower(): known for known in names}
    near = difflib.get_close_matches(str(name).lower(), spelled, n=1, cutoff=NEAR)
    hint = f"did you mean {spelled[near[0]]!r}? " if near else ""
    return ContractError(f"unknown {what} {name!r}: {hint}valid: {', '.join(names) or 'none, it takes nothing'}")
