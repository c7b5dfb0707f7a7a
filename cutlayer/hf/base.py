"""Models of transformers by name or path, `hf:NAME_OR_PATH`, and the adapters that are trained on them.

A base is read from safetensors files alone, and no code of its own is run: neither pickles nor remote code.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from cutlayer.core.extras import needs
from cutlayer.errors import ContractError, StoreError, expect, is_number, is_whole

HEADS = ("classifier", "score")  # what transformers call the last layer of classifiers
Dtype = Literal["float32", "bfloat16", "float16"]


def load(base: str, shape: Sequence[int], classes: int, dtype: Dtype = "float32") -> nn.Module:
    """Return a model for rows of this shape: (length,), a language model; (channels, height, width), a classifier of
    images. Its weights are those of the base; a classifier's last layer is new unless it has as many classes."""
    needs("hf")
    import transformers

    how: dict[str, Any] = {"use_safetensors": True, "trust_remote_code": False, "dtype": getattr(torch, dtype)}
    kind = transformers.AutoModelForCausalLM
    if len(shape) == 3:
        kind = transformers.AutoModelForImageClassification
        how |= {"num_labels": classes, "ignore_mismatched_sizes": True}
    said = transformers.utils.logging
    before = said.get_verbosity()
    said.set_verbosity_error()  # that a classifier's last layer is new is no news
    said.disable_progress_bar()
    try:
        model: nn.Module = kind.from_pretrained(base, **how)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise StoreError(f"model = 'hf:{base}': it cannot be loaded: {_first(error)}") from error
    finally:
        said.set_verbosity(before)
    return model


def tokenizer(base: str) -> Any:
    """Return the tokenizer of a base."""
    needs("hf")
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(base, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise StoreError(f"model = 'hf:{base}': it has no tokenizer that can be loaded: {_first(error)}") from error


def _first(error: Exception) -> str:
    """The first line of an error; those of transformers have many."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


@dataclass(frozen=True)
class LoRA:
    """Low-rank adapters (Hu et al., 2022): W + alpha/r * B A in place of W, of which only A and B are trained.

    targets   the names of the modules that get one, with commas between them; "": those that PEFT chooses for the
              model's family. also: modules that are trained in full; "": the last layer of a classifier
    """

    r: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: str = ""
    also: str = ""

    def __post_init__(self) -> None:
        expect(is_whole(self.r) and self.r >= 1, "r", self.r, "a whole number, at least 1")
        expect(is_number(self.alpha) and self.alpha > 0, "alpha", self.alpha, "a number above 0")
        share = is_number(self.dropout) and 0 <= self.dropout < 1
        expect(share, "dropout", self.dropout, "a share from 0 to below 1")

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model with adapters; everything else in it is frozen."""
        needs("hf")
        import peft

        names, also = (
            [name.strip() for name in given.split(",") if name.strip()] for given in (self.targets, self.also)
        )
        settings = peft.LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=names or None,
            modules_to_save=also or [name for name in HEADS if hasattr(model, name)] or None,
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of PEFT and transformers about each other
                made: nn.Module = peft.get_peft_model(model, settings)
        except (ValueError, TypeError) as error:
            shown = self.targets or "those that PEFT chooses"
            words = f"{_first(error)}; expected names of its modules, such as q_proj,v_proj"
            raise ContractError(f"peft.targets = {shown!r}: no adapters for this model: {words}") from error
        return made
