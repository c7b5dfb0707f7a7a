"""Limits on what a file may unpack to: a few megabytes can claim, and even hold, more than fits into any memory.

Sizes are checked before anything is unpacked. Refused are data larger than the free memory of this machine, and data
both larger than 1 GiB and more than a hundred times larger than their file, as measured data never are.
"""

from __future__ import annotations

from cutlayer.core import heap
from cutlayer.errors import expect

TIMES, FREELY = 100, 2**30


def check(where: object, unpacked: int, packed: int) -> None:
    """Refuse a file of `packed` bytes whose `unpacked` bytes, held in memory all at once, are too many."""
    likely(where, unpacked, packed)
    fits(where, unpacked)


def likely(where: object, unpacked: int, packed: int) -> None:
    """Refuse a file of `packed` bytes whose `unpacked` bytes are implausibly many, even if read in pieces."""
    most = max(TIMES * packed, FREELY)
    said = f"at most {_size(most)} from a file of {_size(packed)}"
    expect(unpacked <= most, f"{where}: unpacked size", _size(unpacked), said)


def fits(where: object, needed: int) -> None:
    """Refuse data that need more memory than this machine has free."""
    free = heap.free()
    if free is not None and needed > free:
        expect(False, f"{where}: size in memory", _size(needed), f"at most the {_size(free)} that are free here")


def _size(many: int) -> str:
    """A number of bytes as text, such as 1.5 GiB."""
    power = min(max(many.bit_length() - 1, 0) // 10, 4)
    return f"{many / 2 ** (10 * power):,.{1 if power else 0}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
