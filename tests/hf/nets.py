"""Small models of transformers with random weights and sizes, one of each family, and inputs for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

WHY = "transformers is not installed (make test-extras has it)"
VOCABULARY, PAD = 50, 0


def transformers() -> Any:
    found = pytest.importorskip("transformers", reason=WHY)
    found.logging.set_verbosity_error()
    return found


def peft() -> Any:
    return pytest.importorskip("peft", reason=WHY.replace("transformers", "peft"))


def sizes(seed: int) -> dict[str, Any]:
    """Random sizes of a small model, by the names that most configurations have for them."""
    draw = random.Random(seed)
    heads = draw.choice([2, 4])
    return {
        "hidden_size": heads * draw.choice([8, 12]),
        "intermediate_size": draw.randrange(20, 60),
        "num_hidden_layers": draw.randrange(2, 5),
        "num_attention_heads": heads,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
    }


def gpt2(seed: int) -> dict[str, Any]:
    s = sizes(seed)
    names = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    return {
        **{mine: s[theirs] for mine, theirs in names.items()},
        "n_positions": 64,
        "vocab_size": VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }


def distil(seed: int) -> dict[str, Any]:
    s = sizes(seed)
    names = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
    more = {"hidden_dim": s["intermediate_size"], "vocab_size": VOCABULARY, "max_position_embeddings": 64}
    return {**{mine: s[theirs] for mine, theirs in names.items()}, **more}


def llama(seed: int) -> dict[str, Any]:
    s = sizes(seed)
    return {**s, "num_key_value_heads": random.Random(seed).choice([1, 2]), "pad_token_id": PAD}


FAMILIES: dict[str, tuple[str, str, Callable[[int], dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", llama),
    "llama-classes": ("LlamaForSequenceClassification", "LlamaConfig", llama),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", llama),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", lambda seed: {**llama(seed), "head_dim": 8}),
    "mistral": ("MistralForCausalLM", "MistralConfig", lambda seed: {**llama(seed), "sliding_window": 4}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", gpt2),
    "gpt2-classes": ("GPT2ForSequenceClassification", "GPT2Config", lambda seed: {**gpt2(seed), "pad_token_id": PAD}),
    "bert": ("BertForSequenceClassification", "BertConfig", sizes),
    "bert-words": ("BertForMaskedLM", "BertConfig", sizes),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertConfig", distil),
    "vit": ("ViTForImageClassification", "ViTConfig", lambda seed: {**sizes(seed), "image_size": 16, "patch_size": 4}),
}


def make(family: str, seed: int = 0, **more: Any) -> nn.Module:
    """A model of a family with random sizes and weights; `more`: of its configuration."""
    found, (model, config, options) = transformers(), FAMILIES[family]
    known = {
        name: value for name, value in {**options(seed), **more}.items() if name != "vocab_size" or family != "vit"
    }
    torch.manual_seed(seed)
    made: nn.Module = getattr(found, model)(getattr(found, config)(**known))
    return made


def inputs(family: str, masked: bool = True, rows: int = 3, length: int = 9) -> dict[str, Tensor]:
    """A few rows of inputs; if `masked`, some are padded."""
    draw = torch.Generator().manual_seed(5)
    if family == "vit":
        return {"pixel_values": torch.randn(rows, 3, 16, 16, generator=draw)}
    ids = torch.randint(2, VOCABULARY, (rows, length), generator=draw)
    if not masked:
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}


def tiny(**more: Any) -> nn.Module:
    """A Llama of two layers."""
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return make("llama", 1, **{**small, "num_key_value_heads": 1, "tie_word_embeddings": False, **more})


def with_lora(model: nn.Module, **more: Any) -> Any:
    """The model with adapters that are not zero."""
    found = peft()
    torch.manual_seed(7)
    made = found.get_peft_model(model, found.LoraConfig(**{"r": 2, "target_modules": ["q_proj", "v_proj"], **more}))
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    return made
