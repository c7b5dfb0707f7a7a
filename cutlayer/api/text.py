"""Text as rows of tokens: `cl.text`. What it returns is what `cl.train` takes as a client or a test.

>>> import cutlayer as cl
>>> x, y = cl.text.packed(["to be", "or not"], lambda text: list(text.encode()), length=5)
>>> x["input_ids"].shape, x["position_ids"].tolist()
(torch.Size([2, 5]), [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])

A tokenizer is one of transformers, or any function that gives the token numbers of a text, such as its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.data.batch import as_tensor
from cutlayer.errors import ContractError, expect, is_whole
from cutlayer.nn.language import IGNORED

__all__ = ["packed", "padded"]

Tokenizer = Callable[..., Any]
Tokens = NDArray[np.int64]


def packed(texts: Iterable[str], tokenizer: Tokenizer, length: int) -> tuple[dict[str, Tensor], Tensor]:
    """Join documents and cut them into rows of `length` tokens, none of which is padding.

    Positions restart with each document, and models of transformers then keep documents from seeing each other. The
    first token of a document is not predicted: its label is -100. Left out are the last row if it is incomplete, and
    rows without a token to predict. No end is added to a document; its text may have one.

    >>> x, y = packed(["abc", "de", "fghi"], lambda text: [ord(c) - ord("a") for c in text], length=4)
    >>> x["input_ids"].tolist(), x["position_ids"].tolist()
    ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 2, 0], [0, 0, 1, 2]])
    >>> y.tolist()
    [[-100, 1, 2, -100], [4, -100, 6, 7]]
    """
    _check_length(length)
    documents = [ids for ids in _tokens(texts, tokenizer) if len(ids)]
    total = sum(map(len, documents))
    expect(total >= length, "texts", f"{total} tokens in all", f"at least {length}, those of one row")
    n = total // length
    ids = np.concatenate(documents)[: n * length].reshape(n, length)
    sizes = np.array([len(document) for document in documents])
    starts = np.zeros(total, dtype=bool)
    starts[np.cumsum(sizes) - sizes] = True
    first = starts[: n * length].reshape(n, length)
    y = np.where(first, IGNORED, ids)
    first[:, 0] = True  # a row does not see what came before it, so positions restart there too
    place = np.broadcast_to(np.arange(length), first.shape)
    positions = place - np.maximum.accumulate(np.where(first, place, 0), axis=1)
    good = (y[:, 1:] != IGNORED).any(axis=1)
    expect(bool(good.any()), "texts", "one token each", "texts of at least two tokens: one is predicted from the other")
    x = {"input_ids": torch.from_numpy(ids[good]), "position_ids": torch.from_numpy(positions[good])}
    return x, torch.from_numpy(y[good])


def padded(
    texts: Iterable[str], tokenizer: Tokenizer, length: int, labels: Any = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one row of each text: its first `length` tokens, and padding behind them if it has fewer.

    labels      the class of each text; without them the labels are the tokens, and -100 where a row is padded

    >>> x, y = padded(["abc", "de"], lambda text: [ord(c) for c in text], length=3)
    >>> x["input_ids"].tolist(), x["attention_mask"].tolist()
    ([[97, 98, 99], [100, 101, 0]], [[1, 1, 1], [1, 1, 0]])
    >>> y.tolist(), padded(["abc", "de"], lambda text: [ord(c) for c in text], length=3, labels=[1, 0])[1].tolist()
    ([[97, 98, 99], [100, 101, -100]], [1, 0])
    """
    _check_length(length)
    found = _tokens(texts, tokenizer, length)
    fewest = 2 if labels is None else 1
    for i, ids in enumerate(found):
        expect(len(ids) >= fewest, f"texts[{i}]", f"{len(ids)} tokens", f"at least {fewest}")
    pad = getattr(tokenizer, "pad_token_id", None)  # without one any will do: the mask says what is padding
    rows = torch.full((len(found), length), pad or 0, dtype=torch.int64)
    mask = torch.zeros_like(rows)
    for i, ids in enumerate(found):
        rows[i, : len(ids)] = torch.from_numpy(ids)
        mask[i, : len(ids)] = 1
    y = rows.masked_fill(mask == 0, IGNORED) if labels is None else as_tensor(labels, "labels")
    expect(y.shape[:1] == (len(rows),), "labels: shape", tuple(y.shape), f"one for each of {len(rows)} texts")
    return {"input_ids": rows, "attention_mask": mask}, y


def _check_length(length: int) -> None:
    expect(is_whole(length) and length >= 2, "length", length, "a whole number of tokens, at least 2")


def _tokens(texts: Iterable[str], tokenizer: Tokenizer, most: int | None = None) -> list[Tokens]:
    """Return the tokens of each text, at most so many."""
    good = isinstance(texts, Iterable) and not isinstance(texts, str | bytes | Mapping)
    expect(good, "texts", f"a {type(texts).__name__}", "a list of texts")
    given = list(texts)
    expect(bool(given), "texts", given, "at least one text")
    for i, text in enumerate(given):
        expect(isinstance(text, str), f"texts[{i}]", f"a {type(text).__name__}", "a text (str)")
    theirs = hasattr(tokenizer, "pad_token_id")  # of transformers; they cut texts so that their special tokens remain
    expect(callable(tokenizer), "tokenizer", f"a {type(tokenizer).__name__}", "a function of a text, or transformers'")
    if theirs:
        cut = {} if most is None else {"truncation": True, "max_length": most}
        return [_numbers(ids, i) for i, ids in enumerate(tokenizer(given, verbose=False, **cut)["input_ids"])]
    return [_numbers(tokenizer(text), i)[:most] for i, text in enumerate(given)]


def _numbers(ids: Sequence[int], i: int) -> Tokens:
    """Return what a tokenizer gave for a text as token numbers."""
    try:
        found = np.asarray(ids)
        good = found.ndim == 1 and (found.dtype.kind in "iu" or not found.size) and (not found.size or found.min() >= 0)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ContractError(f"tokenizer: gave {ids!r:.60} for texts[{i}]; expected a list of whole numbers from 0 on")
    return found.astype(np.int64)
