"""Generation across the cut, with a key-value cache on each side: the tokens are those of the whole model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import cutlayer as cl
from tests.hf import nets

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]
NEW = 8


def whole(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    found: Tensor = model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, eos_token_id=None, pad_token_id=0
    )
    return found


@torch.no_grad()
def halved(model: Any, cut: int, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    front, back = (half.eval() for half in cl.halves(cl.blocks(model), cut))
    mine, theirs = (nets.transformers().DynamicCache() for _ in range(2))
    new = ids
    for _ in range(NEW):
        x: dict[str, Any] = {"input_ids": new}
        if mask is not None:  # positions as `generate` counts them, where prompts are padded on the left
            x |= {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]}
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        crossing = {name: tensor.clone() for name, tensor in front({**x, "past_key_values": mine}).items()}
        assert next(iter(crossing)) == "hidden_states" and crossing["hidden_states"].shape[1] == new.shape[1]
        new = back({**crossing, "past_key_values": theirs})[:, -1:].argmax(dim=2)
        ids = torch.cat([ids, new], dim=1)
    return ids


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_tokens_are_those_of_the_whole_model(family: str) -> None:
    more = {"n_layer": 2} if family == "gpt2" else {"num_hidden_layers": 2}
    model: Any = nets.make(family, 3, tie_word_embeddings=False, initializer_range=0.4, **more).eval()
    draw, seen = torch.Generator().manual_seed(3), set()
    for cut in range(3):
        for n, length in ((1, 1), (1, 5), (2, 9)):
            ids = torch.randint(2, nets.VOCABULARY, (n, length), generator=draw)
            expected = whole(model, ids, torch.ones_like(ids))
            assert torch.equal(halved(model, cut, ids), expected), (cut, n, length)
            seen |= set(expected[:, length:].flatten().tolist())
        mask = torch.ones(3, 6, dtype=torch.int64)
        mask[1, :3] = mask[2, :5] = 0
        ids = torch.randint(2, nets.VOCABULARY, (3, 6), generator=draw)
        assert torch.equal(halved(model, cut, ids, mask), whole(model, ids, mask)), cut
    assert len(seen) > 12, "tokens that say little"
