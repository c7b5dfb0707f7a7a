"""The errors and warnings that cutlayer raises.

CutlayerError
├── AuthError        one end of a connection refused the other's certificate
├── ClientError      a client's model, loss or data raised an error; it names round, client and step
├── ContractError    an argument, a model, data or a message is not what was agreed (a ValueError too)
│   └── FrameError   bytes from another machine are not what was agreed
├── Diverged         the loss or the weights are no longer finite
├── RankLost         another process of the run has ended or stopped answering
├── RoundAbandoned   too few clients finished the round; the weights are those before it
├── StoreError       a run directory cannot be read or written
└── TransportError   the other end of a connection cannot be reached
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable

NEAR = 0.6  # how similar, from 0 to 1, a valid name must be to be suggested


class CutlayerError(Exception):
    """The base class of all errors of cutlayer."""


class ContractError(CutlayerError, ValueError):
    """An argument, a model, data or a message is invalid; the error names it, its value and what was expected."""


class FrameError(ContractError):
    """Bytes from another machine are not what was agreed; none of them have been used."""


class Garbled(FrameError):
    """A frame was damaged on its way: its checksum differs."""


class ClientError(CutlayerError):
    """A client's model, loss or data set raised an error, which is the cause (`__cause__`) of this one."""


class AuthError(CutlayerError):
    """A certificate was refused, by us or by the other end."""


class Diverged(CutlayerError):
    """The loss or the weights became NaN or infinite."""


class RankLost(CutlayerError):
    """A run over several processes has lost one."""


class RoundAbandoned(CutlayerError):
    """A round could not be completed and changed nothing."""


class StoreError(CutlayerError):
    """A run directory is missing, damaged or in the way."""


class TransportError(CutlayerError):
    """The other end of a connection did not answer in time."""


class Restored(UserWarning):
    """A file was damaged and has been restored, from its copy or by writing it again."""


class NoEffect(UserWarning):
    """An option was given that changes nothing in this run."""


def kinds() -> dict[str, type[CutlayerError]]:
    """Return all classes of errors by name."""
    found: dict[str, type[CutlayerError]] = {}
    todo = [CutlayerError]
    while todo:
        kind = todo.pop()
        found[kind.__name__] = kind
        todo += kind.__subclasses__()
    return found


def expect(truth: bool, field: str, value: object, expected: str) -> None:
    """Raise a ContractError that says what was expected of `field` instead of `value`, unless `truth`."""
    if not truth:
        raise ContractError(f"{field} = {value!r}: expected {expected}")


def one_line(text: object) -> str:
    """Return a text as one line that is safe to print on a terminal.

    >>> one_line("wrong:\\n   two\\n   \\x1b[31mthings")
    'wrong: two \\\\x1b[31mthings'
    """
    joined = " ".join(part.strip() for part in str(text).splitlines())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in joined)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, of Python or NumPy; True and False are not."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def is_number(value: object) -> bool:
    """Whether a value is a finite real number, of Python or NumPy; True and False are not."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


def unknown(what: str, name: object, valid: Iterable[str]) -> ContractError:
    """Return the error for a name that is not valid; it suggests the most similar valid name."""
    names = sorted(valid)
    spelled = {known.lower(): known for known in names}
    near = difflib.get_close_matches(str(name).lower(), spelled, n=1, cutoff=NEAR)
    hint = f"did you mean {spelled[near[0]]!r}? " if near else ""
    return ContractError(f"unknown {what} {name!r}: {hint}valid: {', '.join(names) or 'none, it takes nothing'}")
