"""How much a file may unpack to: a few megabytes can announce, and even hold, more than any machine has room for.

Looked at before anything is unpacked. Refused is what would be more than this machine has free, and what would be both
more than 1 GiB and more than a hundred times the file it comes from, as no measured data are.
"""

from __future__ import annotations

from cutlayer.core import heap
from cutlayer.errors import expect

TIMES, FREELY = 100, 2**30


def check(where: object, unpacked: int, packed: int) -> None:
    """Refuse `packed` bytes of a file that become so many, all at once."""
    likely(where, unpacked, packed)
    fits(where, unpacked)


def likely(where: object, unpacked: int, packed: int) -> None:
    """Refuse `packed` bytes of a file that become so many, be it one after the other."""
    most = max(TIMES * packed, FREELY)
    said = f"at most {_size(most)} from a file of {_size(packed)}"
    expect(unpacked <= most, f"{where}: unpacked size", _size(unpacked), said)


def fits(where: object, needed: int) -> None:
    """Refuse what is more than this machine has free."""
    free = heap.free()
    if free is not None and needed > free:
        expect(False, f"{where}: size in memory", _size(needed), f"at most the {_size(free)} that are free here")


def _size(many: int) -> str:
    """So many bytes, in words."""
    power = min(max(many.bit_length() - 1, 0) // 10, 4)
    return f"{many / 2 ** (10 * power):,.{1 if power else 0}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
