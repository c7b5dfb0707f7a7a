"""A user's own text as rows of tokens, from which a language model learns to predict the next token.

    .parquet   a column of texts, and one that says whose they are
    .jsonl     the same: an object in every line
    .txt       one text; a folder of such files: one for each owner

The texts of an owner are joined, with the tokenizer's end-of-text token between them, and cut into rows of one length.
What is left at the end is dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cutlayer.core.sealed import parsed
from cutlayer.data.read.common import Raw, bundle, content, files, lines
from cutlayer.data.read.parquet import texts
from cutlayer.data.rows import Bundle, Form
from cutlayer.errors import ContractError, expect
from cutlayer.registry.own import imported

Document = tuple[str, str]
"""Whose it is, and the text."""


@dataclass(frozen=True)
class Text:
    """How text becomes rows: by the tokenizer of a base, `length` tokens in each."""

    base: str
    length: int

    @cached_property
    def tokenizer(self) -> Any:
        return imported("cutlayer.hf.base:tokenizer")(self.base)

    @property
    def vocabulary(self) -> int:
        return len(self.tokenizer)

    @property
    def fingerprint(self) -> str:
        """A digest of the tokenizer's vocabulary, so that rows of another one are not taken for these."""
        words = json.dumps(sorted(self.tokenizer.get_vocab().items()))
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    def ids(self, text: str) -> list[int]:
        found: Any = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return list(found)


def form(text: Text, x: str, owner: str | None) -> Form:
    def found(where: Path) -> list[Path]:
        if where.is_file():
            return [where] if where.suffix in READERS else []
        return files(where, [".txt"])

    def read(where: Path) -> Bundle:
        documents = [one for path in found(where) for one in READERS[path.suffix](path, x, owner)]
        return bundle([rows(where, documents, text, owner is not None or where.is_dir())])

    return Form("a .parquet, .jsonl or .txt file of text, or a folder of .txt files", found, read)


def rows(where: Path, documents: Sequence[Document], text: Text, owned: bool) -> Raw:
    """Return the rows of all owners."""
    streams: dict[str, list[int]] = {}
    end = text.tokenizer.eos_token_id
    for owner, words in documents:
        stream = streams.setdefault(owner, [])
        stream += [end] if stream and end is not None else []
        stream += text.ids(words)
    n = text.length
    parts = {owner: np.array(ids[: len(ids) // n * n], dtype=np.int64).reshape(-1, n) for owner, ids in streams.items()}
    tokens, longest = sum(map(len, streams.values())), max(map(len, streams.values()), default=0)
    enough = f"at least one row of {n} tokens; the longest text has {longest} of {tokens}"
    expect(any(len(part) for part in parts.values()), f"{where}: rows", 0, enough)
    y = np.concatenate(list(parts.values()))
    owners = [owner for owner, part in parts.items() for _ in part] if owned else None
    return Raw(where, y.astype(np.int32), y, owners)


def _parquet(path: Path, x: str, owner: str | None) -> Iterator[Document]:
    said = texts(path, x)
    yield from zip([""] * len(said) if owner is None else texts(path, owner), said, strict=True)


def _jsonl(path: Path, x: str, owner: str | None) -> Iterator[Document]:
    for number, line in enumerate(lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            found = parsed(line)
        except ValueError as error:
            raise ContractError(f"{where}: not JSON: {error}") from error
        keys = [x] if owner is None else [x, owner]
        for key in keys:
            fits = isinstance(found, dict) and isinstance(found.get(key), str)
            expect(fits, f"{where}: {key}", found.get(key) if isinstance(found, dict) else found, "a text")
        yield "" if owner is None else found[owner], found[x]


def _txt(path: Path, x: str, owner: str | None) -> Iterator[Document]:
    try:
        yield path.stem, content(path).decode()
    except UnicodeDecodeError as error:
        raise ContractError(f"{path}: not text: {error}") from error


READERS: dict[str, Callable[[Path, str, str | None], Iterator[Document]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".txt": _txt,
}
