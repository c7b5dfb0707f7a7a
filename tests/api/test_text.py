"""`cl.text`: documents as rows of tokens, packed or padded."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import cutlayer as cl

TEXTS = ["to be, or not to be", "", "a", "that is the question", "aye"]


def by_bytes(text: str) -> list[int]:
    return list(text.encode())


class Theirs:
    """Behaves like a tokenizer of transformers: it takes a list, and cuts texts but keeps their end."""

    pad_token_id: int | None = 7

    def __call__(
        self, texts: list[str], verbose: bool = True, truncation: bool = False, max_length: int | None = None
    ) -> dict[str, list[list[int]]]:
        assert truncation == (max_length is not None) and not verbose
        return {"input_ids": [[*by_bytes(text)[: max_length and max_length - 1], 2] for text in texts]}


@pytest.mark.parametrize("seed", range(20))
def test_packed_rows_are_the_documents_one_after_another(seed: int) -> None:
    draw = random.Random(seed)
    texts = ["".join(draw.choices("abc", k=draw.randrange(9))) for _ in range(30)]
    length = draw.randrange(2, 12)
    x, y = cl.text.packed(iter(texts), by_bytes, length)
    rows: list[tuple[list[int], list[int], list[int]]] = []
    stream = [(token, place) for text in texts for place, token in enumerate(by_bytes(text))]
    for start in range(0, len(stream) - length + 1, length):
        some = stream[start : start + length]
        labels = [-100 if place == 0 else token for token, place in some]
        if all(label == -100 for label in labels[1:]):
            continue  # nothing to predict
        positions, position = [], -1
        for _, place in some:
            position = 0 if place == 0 else position + 1
            positions.append(position)
        rows.append(([token for token, _ in some], positions, labels))
    assert x["input_ids"].tolist() == [ids for ids, _, _ in rows]
    assert x["position_ids"].tolist() == [positions for _, positions, _ in rows]
    assert y.tolist() == [labels for _, _, labels in rows]
    assert {t.dtype for t in (*x.values(), y)} == {torch.int64}


def test_padded_rows_are_the_texts_cut_or_padded() -> None:
    texts = ["to be", "or not to be", "aye"]
    x, y = cl.text.padded(texts, by_bytes, 5)
    assert list(x) == ["input_ids", "attention_mask"]
    assert x["input_ids"].tolist() == [by_bytes("to be"), by_bytes("or no"), [*by_bytes("aye"), 0, 0]]
    assert x["attention_mask"].tolist() == [[1] * 5, [1] * 5, [1, 1, 1, 0, 0]]
    assert y.tolist() == [by_bytes("to be"), by_bytes("or no"), [*by_bytes("aye"), -100, -100]]
    for labels in ([2, 0, 1], torch.tensor([2, 0, 1])):
        again, classes = cl.text.padded(["a", *texts[1:]], by_bytes, 5, labels=labels)
        assert classes.tolist() == [2, 0, 1] and again["attention_mask"].sum(dim=1).tolist() == [1, 5, 3]


@pytest.mark.parametrize("pad", [7, None])
def test_tokenizers_of_transformers_cut_and_pad_as_they_do(pad: int | None) -> None:
    theirs = Theirs()
    theirs.pad_token_id = pad
    x, _ = cl.text.padded(["to be", "aye"], theirs, 5)
    assert x["input_ids"].tolist() == [[*by_bytes("to b"), 2], [*by_bytes("aye"), 2, pad or 0]]
    x, y = cl.text.packed(["to be", "aye"], theirs, 6)
    assert x["input_ids"].tolist() == [[*by_bytes("to be"), 2]] and y[0, 0] == -100


@pytest.mark.parametrize(
    ("texts", "tokenizer", "length", "said"),
    [
        ("to be", by_bytes, 4, "texts = 'a str': expected a list of texts"),
        ({"a": "b"}, by_bytes, 4, "texts = 'a dict': expected a list of texts"),
        ([], by_bytes, 4, r"texts = \[\]: expected at least one text"),
        (["to be", 3], by_bytes, 4, r"texts\[1\] = 'a int': expected a text"),
        (["to be"], by_bytes, 1, "length = 1: expected a whole number of tokens, at least 2"),
        (["to be"], by_bytes, 4.0, "length = 4.0: expected a whole number"),
        (["to be"], "bytes", 4, "tokenizer = 'a str': expected a function of a text"),
        (["to be"], str.split, 4, r"tokenizer: gave \['to', 'be'\] for texts\[0\]; expected a list of whole numbers"),
        (["to be"], lambda text: [3, -1], 4, r"tokenizer: gave \[3, -1\] for texts\[0\]"),
        (["to be"], lambda text: 5, 4, r"tokenizer: gave 5 for texts\[0\]"),
        (["to be"], lambda text: [[1], [2, 3]], 4, r"tokenizer: gave \[\[1\], \[2, 3\]\]"),
    ],
)
def test_what_is_no_text(texts: Any, tokenizer: Any, length: Any, said: str) -> None:
    for make in (cl.text.packed, cl.text.padded):
        with pytest.raises(cl.ContractError, match=said):
            make(texts, tokenizer, length)


def test_texts_that_are_too_short() -> None:
    with pytest.raises(cl.ContractError, match=r"texts = '43 tokens in all': expected at least 44"):
        cl.text.packed(TEXTS, by_bytes, 44)
    assert cl.text.packed(TEXTS, by_bytes, 43)[1].shape == (1, 43)
    with pytest.raises(cl.ContractError, match="texts = 'one token each': expected texts of at least two tokens"):
        cl.text.packed(["a", "b", "c"], by_bytes, 2)
    with pytest.raises(cl.ContractError, match=r"texts\[1\] = '0 tokens': expected at least 2"):
        cl.text.padded(TEXTS, by_bytes, 8)
    with pytest.raises(cl.ContractError, match=r"texts\[1\] = '0 tokens': expected at least 1"):
        cl.text.padded(TEXTS, by_bytes, 8, labels=[0] * 5)
    for labels in ([1, 2, 3], 3):
        with pytest.raises(cl.ContractError, match=r"labels: shape = .*: expected one for each of 2 texts"):
            cl.text.padded(["to", "be"], by_bytes, 8, labels=labels)
