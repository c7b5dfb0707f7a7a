"""Encode windows of text as uint8, one code for each character."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cutlayer.errors import ContractError

LEAF = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 symbols; no others occur in its Shakespeare."""
WINDOW = 80  # characters before the one to predict


def encode(strings: Sequence[str], where: object, length: int, alphabet: str = LEAF) -> NDArray[np.uint8]:
    """Return the places of the strings' characters in the alphabet, [n, length]; refuse a character outside it."""
    lengths = np.fromiter(map(len, strings), dtype=np.int64, count=len(strings))
    if len(odd := np.flatnonzero(lengths != length)):
        row = odd[0]
        raise ContractError(f"{where}, row {row}: {lengths[row]} characters, expected {length}: {strings[row]!r}")
    unknown = len(alphabet)
    table = np.full(256, unknown, dtype=np.uint8)
    table[np.frombuffer(alphabet.encode("latin-1"), dtype=np.uint8)] = np.arange(unknown)
    text = "".join(strings)
    wrong: int | None = None
    try:
        codes = table[np.frombuffer(text.encode("latin-1"), dtype=np.uint8)]
        if codes.size and codes.max() == unknown:
            wrong = int(codes.argmax())
    except UnicodeEncodeError as error:
        wrong = error.start
    if wrong is not None:
        raise ContractError(f"{where}, row {wrong // length}: character {text[wrong]!r}, expected one of {alphabet!r}")
    return codes.reshape(len(strings), length)
