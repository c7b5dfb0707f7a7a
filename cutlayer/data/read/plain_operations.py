"""The operations of a pickle, with operations that mean the same reduced to one."""

from __future__ import annotations

import codecs
import io
import pickletools
from collections.abc import Iterator
from typing import Any

NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
TEXTS = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
STRINGS = ("BINSTRING", "SHORT_BINSTRING")
CODES = {operation.code.encode("latin-1"): operation for operation in pickletools.opcodes}
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
SAME = {
    **dict.fromkeys(NUMBERS + TEXTS, "PUSH"),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), "PUT"),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), "GET"),
}


def operations(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield operations with their arguments up to STOP.

    They are read as `pickletools.genops` does, except for the strings of protocol 0, which it takes for ASCII. Python
    2's strings become bytes.
    """
    stream = io.BytesIO(data)
    while (code := stream.read(1)) != b".":
        if code not in CODES:
            raise ValueError(f"operation {code!r} at byte {stream.tell() - 1}" if code else "the end is missing")
        name, read = CODES[code].name, CODES[code].arg
        if name == "STRING":
            yield "PUSH", _quoted(stream.readline())
            continue
        argument: Any = read.reader(stream) if read else None
        if name in CONSTANTS:
            yield "PUSH", CONSTANTS[name]
        elif name in BYTES:
            yield "PUSH", bytes(argument)
        elif name in STRINGS:
            yield "PUSH", argument.encode("latin-1")
        else:
            yield SAME.get(name, name), argument


def _quoted(line: bytes) -> bytes:
    text = line.rstrip(b"\r\n")
    if not line.endswith(b"\n") or len(text) < 2 or text[:1] not in (b"'", b'"') or text[:1] != text[-1:]:
        raise ValueError("a string without its quotes")
    return codecs.escape_decode(text[1:-1])[0]
