"""Files with a checksum: whatever byte of them changes, they are as they were written, or they are refused."""

from __future__ import annotations

import json

import pytest
import torch

from cutlayer.core.sealed import SEAL, pack, seal, unpack, unseal
from cutlayer.errors import StoreError

TENSORS = {"w": torch.arange(3.0), "n": torch.tensor([7])}
WORDS = {"class": "net", "cut": "2"}
VALUES = {"round": 4, "sha256": "0" * 64, "of": {"a": [1.5, None]}}


def damaged(content: bytes) -> list[bytes]:
    """Every byte changed: each bit of it, and into each character that means something in JSON."""
    found = []
    for at, byte in enumerate(content):
        others = {byte ^ (1 << bit) for bit in range(8)} | set(b'"\\,:{} 0z') | {0}
        found += [content[:at] + bytes([other]) + content[at + 1 :] for other in sorted(others - {byte})]
    return found


def test_no_byte_of_a_file_of_tensors_changes_unnoticed() -> None:
    content, silent = pack(TENSORS, WORDS), 0
    assert unpack(content, older=True)[1] == WORDS
    for changed in damaged(content):
        try:
            tensors, words = unpack(changed, older=True)
        except StoreError:
            continue
        silent += 1
        assert words == WORDS and tensors.keys() == TENSORS.keys(), changed
        assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS), changed
    assert silent < 200, "blanks, and what is written otherwise in JSON"


def test_no_byte_of_a_file_of_values_changes_unnoticed() -> None:
    content = seal(VALUES).encode()
    assert unseal(content, older=True) == VALUES
    for changed in damaged(content):
        try:
            assert unseal(changed, older=True) == VALUES, changed
        except ValueError:
            continue


def test_files_without_a_checksum_are_older_ones() -> None:
    assert unseal(json.dumps(VALUES), older=True) == VALUES
    with pytest.raises(ValueError, match="it has no checksum"):
        unseal(json.dumps(VALUES))
    with pytest.raises(ValueError, match="it has no checksum"):
        unseal(json.dumps({**VALUES, "se4l": "0" * 32}), older=True)
    assert unseal(json.dumps({**VALUES, "deal": "no"}), older=True) == {**VALUES, "deal": "no"}
    assert SEAL == "seal", "its name is part of the format"
