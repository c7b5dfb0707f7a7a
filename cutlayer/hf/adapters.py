"""The adapters of a trained PEFT model on disk, as `PeftModel.from_pretrained` reads them.

adapter/   adapter_config.json         the kind of adapters, and the name of the base
           adapter_model.safetensors   their weights, with a checksum, and a digest of the base

The base itself is never written.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cutlayer.core import sealed
from cutlayer.core.extras import needs
from cutlayer.core.files import write_aside
from cutlayer.errors import ContractError, StoreError
from cutlayer.nn.layered import inner
from cutlayer.nn.state import frozen_digest

FOLDER = "adapter"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def has_adapters(model: nn.Module) -> bool:
    """Whether a model is one of PEFT's."""
    return hasattr(model, "peft_config") and hasattr(model, "active_peft_config")


def base_of(model: nn.Module) -> dict[str, str]:
    """The name of a PEFT model's base, and a digest of its weights."""
    config: Any = inner(model).config
    return {"name": str(getattr(config, "_name_or_path", "") or ""), "sha256": frozen_digest(model)}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the adapters, by the names that PEFT's files have for them."""
    needs("hf")
    import peft

    found: dict[str, Tensor] = peft.get_peft_model_state_dict(model)
    return found


def save(folder: Path, model: nn.Module, words: dict[str, str]) -> str:
    """Write the adapters of a model; return a digest of their weights."""
    config: Any = copy.deepcopy(getattr(model, "active_peft_config", None))
    config.inference_mode = True
    folder.mkdir(exist_ok=True)
    config.save_pretrained(str(folder))
    text = json.loads((folder / CONFIG).read_text())
    write_aside(folder / CONFIG, json.dumps(text, indent=2, sort_keys=True).encode())  # whole, or not at all
    tensors = tensors_of(model)
    sealed.save_model(folder / WEIGHTS, tensors, {"format": "pt", **words})
    return sealed.digest(tensors)


def load(folder: Path, base: nn.Module) -> nn.Module:
    """Return a base with the adapters of a folder; refuse another base than they were trained on."""
    needs("hf")
    import peft

    tensors, words = sealed.unpack((folder / WEIGHTS).read_bytes(), older=True)
    known = sealed.parsed(words["cutlayer"]).get("base", {}) if "cutlayer" in words else {}
    made: nn.Module
    if has_adapters(base):
        made = base
        wrong = peft.set_peft_model_state_dict(made, tensors).unexpected_keys
        if wrong:
            raise ContractError(f"{folder}: its adapters do not fit the model: it has no {', '.join(wrong[:4])}")
    else:
        try:
            made = peft.PeftModel.from_pretrained(base, str(folder), is_trainable=True)
        except (RuntimeError, ValueError, KeyError) as error:
            raise ContractError(f"{folder}: its adapters do not fit the model: {error}") from error
    mine, theirs = frozen_digest(made), known.get("sha256")
    if theirs not in (None, mine):
        raise StoreError(f"its adapters were trained on a base with the digest {theirs[:16]}; this one has {mine[:16]}")
    return made.eval()
