"""Text as rows of tokens: files, owners, the ends of texts, and what is refused. The tokenizer here is one of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from cutlayer.data import cache
from cutlayer.data.own import Own
from cutlayer.data.read import text_rows
from cutlayer.data.read.text_rows import Text
from cutlayer.errors import ContractError, StoreError

END = 256


class Bytes:
    """A tokenizer as transformers have them: a token for each byte."""

    eos_token_id = END

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": list(text.encode())}

    def __len__(self) -> int:
        return 257

    def get_vocab(self) -> dict[str, int]:
        return {str(k): k for k in range(257)}


@pytest.fixture(autouse=True)
def _bytes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rows, "imported", lambda path: lambda base: Bytes())
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path_factory.mktemp("cache")))


def read(path: Path, length: int = 4, **more: Any) -> Any:
    return Own(str(path), **{"x": "text", **more}, text=Text("base", length)).load()


def shown(rows: Any) -> list[str]:
    return ["".join("|" if code == END else chr(code) for code in row) for row in rows.x]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_texts_of_owners(tmp_path: Path, kind: str) -> None:
    """Each owner's texts are joined, cut, and what is left is dropped; whoever has too little has no row."""
    texts, whose = ["abcde", "fgh", "ij", "klmnop"], ["x", "y", "x", "z"]
    path = tmp_path / f"plays.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pa.table({"text": texts, "role": whose}), path)
    else:
        lines = [{"text": text, "role": role} for text, role in zip(texts, whose, strict=True)]
        path.write_text("\n".join(map(json.dumps, lines)))
    found = read(path, owner="role")
    assert shown(found.train) == ["abcd", "e|ij", "klmn"]
    assert [found.train.owner_names[k] for k in found.train.owners] == ["x", "x", "z"]
    assert found.classes == 257 and found.train.y.dtype == np.int64
    assert (found.train.x == found.train.y).all()
    assert shown(read(path).train) == ["abcd", "e|fg", "h|ij", "|klm"]  # nobody's


def test_files_of_text(tmp_path: Path) -> None:
    for name, text in (("anna", "abcdefgh"), ("bob", "ijklm")):
        (tmp_path / f"{name}.txt").write_text(text)
    found = read(tmp_path)
    assert shown(found.train) == ["abcd", "efgh", "ijkl"]
    assert [found.train.owner_names[k] for k in found.train.owners] == ["anna", "anna", "bob"]
    one = read(tmp_path / "anna.txt", test=str(tmp_path / "bob.txt"))
    assert shown(one.train) == ["abcd", "efgh"] and shown(one.test) == ["ijkl"] and one.train.owners is None


def test_another_length_is_not_taken_from_the_cache(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh")
    assert [shown(read(tmp_path / "a.txt", length).train) for length in (4, 8, 4)] == [
        ["abcd", "efgh"],
        ["abcdefgh"],
        ["abcd", "efgh"],
    ]


def test_what_is_refused(tmp_path: Path) -> None:
    short, bad, worse = tmp_path / "short.txt", tmp_path / "bad.jsonl", tmp_path / "worse.jsonl"
    short.write_text("abc")
    with pytest.raises(ContractError, match=r"rows = 0: expected at least one row of 4 tokens; the longest text has 3"):
        read(short)
    bad.write_text('{"text": "abc"}\n{"text": 3}')
    with pytest.raises(ContractError, match="line 2: text = 3: expected a text"):
        read(bad)
    worse.write_text("{")
    with pytest.raises(ContractError, match="line 1: not JSON"):
        read(worse)
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ContractError, match="not text"):
        read(tmp_path / "latin.txt")
    (tmp_path / "x.npz").touch()
    with pytest.raises(StoreError, match="nothing to read there; expected a"):
        read(tmp_path / "x.npz")
