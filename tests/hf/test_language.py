"""Language models and text: the loss is transformers', and rows of several documents teach what the documents do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import cutlayer as cl
from tests.hf import nets

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]
TEXTS = ["abcdefgh", "ijkl", "mnopqrstuvw", "xyza", "bcd", "efghijklmnopq", "rs", "tuv"]


def letters(text: str) -> list[int]:
    return [2 + ord(letter) - ord("a") for letter in text]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_the_loss_is_that_of_transformers(family: str) -> None:
    model: Any = nets.make(family, initializer_range=0.4).eval()
    x = nets.inputs(family)
    y = x["input_ids"].masked_fill(x["attention_mask"] == 0, -100)
    y[0, 3:5] = -100
    found = model(**x, labels=y)
    torch.testing.assert_close(cl.next_token(found.logits, y), found.loss, rtol=1e-6, atol=1e-6)
    short = model.bfloat16()(**x, labels=y)
    torch.testing.assert_close(cl.next_token(short.logits, y), short.loss, rtol=1e-6, atol=1e-6)


def pieces(x: dict[str, Tensor]) -> Iterator[Tensor]:
    """What each document has in each row, alone."""
    for row, ids in enumerate(x["input_ids"]):
        if "attention_mask" in x:
            yield ids[x["attention_mask"][row] == 1]
        else:
            starts = [*(x["position_ids"][row] == 0).nonzero().flatten().tolist(), len(ids)]
            yield from (ids[a:b] for a, b in pairwise(starts))


def alone(model: Any, x: dict[str, Tensor], y: Tensor) -> Tensor:
    """The loss of the documents, each of them alone through the model itself."""
    parts = [p[None] for p in pieces(x) if len(p) > 1]
    tokens = [part.shape[1] - 1 for part in parts]
    assert sum(tokens) == int((y[:, 1:] != -100).sum())
    losses = [cl.next_token(model(part).logits, part) * n for part, n in zip(parts, tokens, strict=True)]
    return torch.stack(losses).sum() / sum(tokens)


@pytest.mark.parametrize("form", ["packed", "padded"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_rows_teach_what_the_documents_teach(family: str, form: str) -> None:
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} if family == "gpt2" else {}
    model: Any = nets.make(family, 2, tie_word_embeddings=False, initializer_range=0.2, **still)
    x, y = getattr(cl.text, form)(TEXTS, letters, 6)
    options: dict[str, Any] = {"batch_size": len(y), "rounds": 1, "local_epochs": 1, "loss": cl.next_token}
    step = cl.SGD(lr=0.5, momentum=0.0, weight_decay=0.0)
    found = cl.train(model, [(x, y)], test=(x, y), metric=cl.Perplexity(), cut=1, optimizer=step, **options)
    before, plain = [p.detach().clone() for p in model.parameters()], torch.optim.SGD(model.parameters(), lr=0.5)
    alone(model, x, y).backward()
    plain.step()
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    for one, other in zip(found.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert found.history[0].metric == pytest.approx(float(alone(model, x, y).exp()), rel=1e-3)


def test_a_tokenizer_of_transformers() -> None:
    transformers = nets.transformers()
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["?", "to", "be", "or", "not", "that", "is"])}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?")
    x, y = cl.text.padded(["to be or not to be", "that is"], tokenizer, 4)
    assert x["input_ids"].tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]] and y.tolist()[1] == [5, 6, -100, -100]
    tokenizer.add_special_tokens({"pad_token": "is"})
    assert cl.text.padded(["to be"], tokenizer, 4)[0]["input_ids"].tolist() == [[1, 2, 6, 6]]
    x, y = cl.text.packed(["to be or not to be", "that is"], tokenizer, 4)
    assert x["input_ids"].tolist() == [[1, 2, 3, 4], [1, 2, 5, 6]] and y.tolist()[1] == [1, 2, -100, 6]


def test_texts_are_classified() -> None:
    x, y = cl.text.padded(TEXTS, letters, 6, labels=[0, 1] * 4)
    model = nets.make("llama-classes", num_labels=2)
    options: dict[str, Any] = {"cut": 1, "rounds": 1, "batch_size": 4, "local_epochs": 1}
    assert cl.train(model, [(x, y)], test=(x, y), **options).history[0].accuracy is not None
