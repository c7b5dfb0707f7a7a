"""Characters to codes and back."""

from __future__ import annotations

import time

import numpy as np
import pytest

from cutlayer.data.read.text import LEAF, encode
from cutlayer.errors import ContractError

OTHER = LEAF[1:-1] + "{}"  # as many symbols, without a newline


def test_both_alphabets_have_eighty_symbols_and_differ_in_two() -> None:
    assert len(LEAF) == len(set(LEAF)) == 80
    assert LEAF[:2] == "\n " and LEAF[-1] == "}"


@pytest.mark.parametrize("alphabet", [LEAF, OTHER])
def test_a_code_is_a_place_in_the_alphabet(alphabet: str) -> None:
    rng = np.random.default_rng(0)
    strings = ["".join(rng.choice(list(alphabet), 80)) for _ in range(20)]
    codes = encode(strings, "f", 80, alphabet)
    assert codes.dtype == np.uint8 and codes.shape == (20, 80)
    assert [[alphabet.find(c) for c in string] for string in strings] == codes.tolist()
    assert encode([], "f", 80).shape == (0, 80)


def test_what_is_outside_is_named() -> None:
    for strings, said in [
        (["ab", "a#"], "f, row 1: character '#', expected one of"),
        (["ab", "\u2014b"], "f, row 1: character '\u2014', expected one of"),
        (["ab", "abc"], "f, row 1: 3 characters, expected 2: 'abc'"),
        (["ab", ""], "f, row 1: 0 characters, expected 2: ''"),
    ]:
        with pytest.raises(ContractError, match=said):
            encode(strings, "f", 2)
    with pytest.raises(ContractError, match=r"f, row 0: character '\\n'"):
        encode(["a\n"], "f", 2, OTHER)


def test_it_is_quick() -> None:
    start = time.perf_counter()
    encode(["To be, or not to be: that is the question: Whether 'tis nobler in the mind to suf"[:80]] * 50_000, "f", 80)
    assert time.perf_counter() - start < 5  # about 0.05 s
