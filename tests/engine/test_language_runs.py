"""Trainings of language models: labels are checked before the first round, and perplexity is over all tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl

TEXTS = ["to be, or not to be, that is the question", "whether tis nobler in the mind", "to suffer", "or to take arms"]
OPTIONS: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": 2, "local_epochs": 1, "loss": cl.next_token}


def by_bytes(text: str) -> list[int]:
    return [b - 32 for b in text.encode()]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(96, 8), nn.Linear(8, 96))


def rows() -> tuple[Tensor, Tensor]:
    x, y = cl.text.packed(TEXTS, by_bytes, 8)
    return x["input_ids"], y


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_perplexity_is_over_all_tokens_of_the_test(backend: str) -> None:
    x, y = cl.text.padded(TEXTS * 150, by_bytes, 30)
    shortest = x["attention_mask"].sum(dim=1).argsort()  # so that the two batches of the test have other means
    test = x["input_ids"][shortest], y[shortest]
    clients = [rows(), rows()]
    result = cl.train(model(), clients, test, metric=cl.Perplexity(), backend=backend, **OPTIONS)
    last = result.history[-1]
    with torch.no_grad():
        whole = cl.next_token(result.model(test[0]), test[1])
    assert last.metric == pytest.approx(math.exp(whole), rel=1e-5)
    assert last.accuracy is None and last.f1 is None and last.auc is None and last.loss is not None
    assert last.loss != pytest.approx(float(whole), rel=1e-4)  # a mean over batches of rows
    each = cl.train(model(), clients, clients, metric=cl.Perplexity, **OPTIONS).history[-1]
    assert each.metric is not None and each.metric < 96


def test_a_test_with_large_outputs_is_taken_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows()
    few = 3 * 8 * 96 * 4  # bytes of the outputs of three rows
    monkeypatch.setattr("cutlayer.engine.evaluate.LARGEST", few)
    seen: list[int] = []

    class Watched(cl.Perplexity):
        def update(self, out: Tensor, y: Tensor) -> None:
            seen.append(out.nbytes)
            super().update(out, y)

    options = {**OPTIONS, "rounds": 1}
    found = cl.train(model(), [(x, y)], (x, y), metric=Watched, **options).history[0].metric
    assert len(x) % 3 and sorted(set(seen)) == [few // 3 * (len(x) % 3), few] and sum(seen) == few // 3 * len(x)
    monkeypatch.undo()
    expected = cl.train(model(), [(x, y)], (x, y), metric=Watched, **options).history[0].metric
    assert found == pytest.approx(expected, rel=1e-6)


def test_rows_without_a_label_to_predict_are_refused_before_the_first_round() -> None:
    x, y = rows()
    y = y.clone()
    y[2, 1:] = -100
    with pytest.raises(cl.ContractError, match=r"clients\[1\]: labels of row 2: all after the first are ignored"):
        cl.train(model(), [(x, x), (x, y)], **OPTIONS)
    with pytest.raises(cl.ContractError, match=r"test: labels of row 2: all after the first are ignored"):
        cl.train(model(), [(x, x)], (x, y), **OPTIONS)


@pytest.mark.parametrize("wrong", [96, -1, -101])
def test_labels_outside_the_vocabulary_are_refused_before_the_first_round(wrong: int) -> None:
    x, y = rows()
    y = y.clone()
    y[3, 4] = wrong
    words = rf"clients\[1\]: labels of row 3 = {wrong}: expected -100 \(ignored\) or 0..95, the model's 96 outputs"
    with pytest.raises(cl.ContractError, match=words):
        cl.train(model(), [(x, x), (x, y)], **OPTIONS)
