"""The Python of docs/transformers.md runs as it stands, with small random models in place of those that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer as cl
from tests.hf import nets

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).parent.parent.parent / "docs" / "transformers.md"


class Letters:
    """Stands for a tokenizer."""

    pad_token_id = 0

    def __call__(self, texts: Any, return_tensors: str = "", **more: Any) -> dict[str, Any]:
        numbers = [[2 + ord(c) % 40 for c in text][: more.get("max_length")] for text in texts]
        return {"input_ids": torch.tensor([[2 + ord(c) % 40 for c in texts]]) if return_tensors else numbers}


def test_the_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    transformers, peft = nets.transformers(), nets.peft()
    text = PAGE.read_text()
    assert {"transformers", "peft"} <= set(re.findall(r"from (\w+) import", text)) and peft
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: Letters())
    tied = {"num_hidden_layers": 3, "tie_word_embeddings": True}
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda name: nets.tiny(**tied))
    classifier = transformers.AutoModelForSequenceClassification
    monkeypatch.setattr(classifier, "from_pretrained", lambda name, **more: nets.make("llama-classes", **more))
    monkeypatch.chdir(tmp_path)
    rows = torch.randint(2, nets.VOCABULARY, (4, 6))
    trained: dict[str, Any] = {"cut": 2, "rounds": 1, "batch_size": 2, "loss": cl.next_token, "out": "runs/notes"}
    cl.train(nets.with_lora(nets.tiny(**tied)), [(rows, rows)], **trained)
    words = ["to be, or not to be, that is the question"]
    given: dict[str, Any] = {
        "texts_of_each_client": [words * 14, words * 13],
        "test_texts": words * 5,
        "reviews": words * 8,
        "stars": [0, 1] * 4,
    }
    for block in re.findall(r"```python\n(.*?)```", text.replace("length=512", "length=64"), re.DOTALL):
        exec(block.replace("length=256", "length=60"), given)
    assert given["ids"].shape == (1, len("To be, or not to be") + 20)
    assert given["result"].history[-1].metric < nets.VOCABULARY
