"""Models with a list of layers, such as those of Hugging Face's transformers, as blocks.

The forward of such a model embeds its inputs, prepares masks and positions, calls its layers one after another, and
ends with a head. torch.fx cannot follow the preparation, so the blocks use the model's own forward, on shells: copies
of the model's outer modules that share their children, some of them replaced.

    stem    the forward up to the first layer; the layers only note what they are called with
    layer   one layer, called with what the forward prepared for it
    head    the forward from the last layer on; embeddings and layers only pass the activations on

What a layer is called with besides the activations (a mask for every pair of tokens, rotary embeddings) can be large
and depends on little, so it does not cross a cut: the side behind the cut prepares it again, from `BESIDE`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cutlayer.core.randomness import OwnRandomness
from cutlayer.errors import ContractError, expect
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import Blocks
from cutlayer.nn.layers import HIDDEN, find
from cutlayer.nn.nested import Inputs
from cutlayer.nn.shell import CACHE, Carried, Note, Passed, Shell, StandIn
from cutlayer.nn.state import share_buffers

BESIDE = ("attention_mask", "position_ids")
"""The inputs that cross a cut beside the activations, where a batch has them: masks and positions are made of them."""


class _Block(nn.Module):
    """A block of a model: the modules it owns, under their own names, and shells that call them."""

    stackable = False

    def __init__(self, owned: Mapping[str, nn.Module], *shells: Shell) -> None:
        super().__init__()
        self.shells = shells  # in a tuple, so that the shells' modules are not this module's
        for path, module in owned.items():
            *outer, name = path.split(".")
            holder: nn.Module = self
            for step in outer:
                if step not in holder._modules:
                    holder.add_module(step, nn.Module())
                holder = holder.get_submodule(step)
            holder.add_module(name, module)

    def train(self, mode: bool = True) -> _Block:
        for shell in self.shells:
            shell.train(mode)
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> _Block:
        for shell in self.shells:
            for module in shell.model.modules():
                for name, buffer in module._buffers.items():
                    module._buffers[name] = None if buffer is None else fn(buffer)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


class Stem(_Block):
    """The embeddings, and whatever else is called before the first layer."""

    counts = False  # whether it counts the tokens in a key-value cache: on a side without layers nobody else does

    def __init__(self, owned: Mapping[str, nn.Module], shell: Shell, main: str, positions: int | None) -> None:
        super().__init__(owned, shell)
        self.main, self.positions = main, positions

    def forward(self, x: Inputs) -> Carried:
        inputs: dict[str, Any] = {self.main: x} if isinstance(x, Tensor) else dict(x)
        main = inputs.get(self.main)
        if isinstance(main, Tensor) and main.ndim == 2 and self.positions is not None:
            most = f"at most {self.positions}, the positions that the model has"
            expect(main.shape[1] <= self.positions, self.main, f"{main.shape[1]} tokens in a row", most)
        (shell,) = self.shells
        shell(inputs, None, stops=True)
        h, prepared = shell.prepared()
        if self.counts and inputs.get(CACHE) is not None:
            inputs[CACHE].update(*2 * [h[:, None, :, :1].detach()], 0)
        made = Carried({HIDDEN: h, **{name: inputs[name] for name in BESIDE if isinstance(inputs.get(name), Tensor)}})
        made.prepared = prepared
        return made


class _Inner(_Block):
    """A block that is given activations, and can prepare again what crossed no cut."""

    def __init__(self, owned: Mapping[str, nn.Module], shell: Shell, main: Fake) -> None:
        super().__init__(owned, shell)
        self.main = main

    def _given(self, x: Inputs) -> tuple[Tensor, dict[str, Any]]:
        """Return the activations, and inputs for a shell."""
        h, more = (x, {}) if isinstance(x, Tensor) else (x[HIDDEN], {n: t for n, t in x.items() if n != HIDDEN})
        return h, {self.main.name: self.main(h, more.get(BESIDE[0])), **more}


class Layer(_Inner):
    """One layer of the model."""

    def __init__(self, owned: Mapping[str, nn.Module], index: int, shell: Shell, main: Fake) -> None:
        super().__init__(owned, shell, main)
        self.index, self.layer = index, next(iter(owned))

    def forward(self, x: Inputs) -> Carried:
        carried = x if isinstance(x, Carried) and x.prepared else self._prepare(x)
        return carried.on(carried.prepared[self.index].call(self.get_submodule(self.layer), carried[HIDDEN]))

    def renumber(self, place: int) -> None:
        """Make the layer the one at this place in a key-value cache."""
        for module in self.get_submodule(self.layer).modules():
            if hasattr(module, "layer_idx"):
                vars(module)["layer_idx"] = place

    def _prepare(self, x: Inputs) -> Carried:
        h, inputs = self._given(x)
        (shell,) = self.shells
        shell(inputs, h.detach(), stops=True)
        made = Carried({HIDDEN: h, **{name: inputs[name] for name in BESIDE if name in inputs}})
        made.prepared = shell.prepared()[1]
        return made


class Head(_Inner):
    """Whatever is called after the last layer."""

    takes_beside = True

    def forward(self, x: Inputs) -> Tensor:
        h, inputs = self._given(x)
        (shell,) = self.shells
        inputs.pop(CACHE, None)
        out = shell(inputs, h, stops=False)
        shell.forget()
        return logits(out)


@dataclass(frozen=True)
class Fake:
    """Makes the main input for a side that must not have it: of the right shape, without its content."""

    name: str
    row: tuple[int, ...]  # the shape of a row of measurements; () for codes, of which there is one per activation
    dtype: torch.dtype
    pad: int | None

    def __call__(self, h: Tensor, mask: Tensor | None) -> Tensor:
        if self.row:
            return h.new_zeros((), dtype=self.dtype).expand(len(h), *self.row)
        padding = 0 if self.pad is None else self.pad
        ids = torch.full(h.shape[:2], padding + 1 if padding == 0 else padding - 1, device=h.device)
        if mask is not None and mask.ndim == 2 and mask.shape == ids.shape:
            ids = ids.masked_fill(mask == 0, padding)  # a head may look for the last token that is no padding
        return ids


class Layered(Blocks):
    """A model with a list of layers, as blocks: the embeddings, each layer, and the head."""

    def forward(self, x: Inputs) -> Any:
        main = str(getattr(self.model, "main_input_name", "input_ids"))
        more = {"use_cache": False} if "use_cache" in inspect.signature(inner(self.model).forward).parameters else {}
        return logits(self.model(**({main: x} if isinstance(x, Tensor) else x), **more))

    def in_order(self, x: Inputs) -> Any:
        """Compute the same, block after block, as if the model were cut after each of them."""
        out: Any = x
        for block in self.blocks:
            out = block(dict(out) if isinstance(out, Carried) else out)
        return out


def is_layered(model: nn.Module) -> bool:
    """Whether a model is one of transformers', or a PEFT model of one."""
    return hasattr(inner(model), "main_input_name") and hasattr(inner(model), "config")


def inner(model: nn.Module) -> nn.Module:
    """The model itself, inside the wrapper that PEFT puts around it."""
    wrapped = getattr(model, "get_base_model", None)
    found: nn.Module = wrapped() if hasattr(model, "peft_config") and callable(wrapped) else model
    return found


def logits(out: Any) -> Tensor:
    """The output that a loss is computed from."""
    found = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    if not isinstance(found, Tensor):
        names = ", ".join(out) if isinstance(out, Mapping) else type(out).__name__
        raise ContractError(f"model: its output has {names}, and no logits; expected a model with a head")
    return found


def layered(model: nn.Module, x: Inputs | None = None) -> tuple[Layered, dict[str, Tensor]]:
    """Return such a model as blocks, and a few rows of its inputs: `x`, or others that show where its layers are."""
    whole = inner(model)
    learns = getattr(model, "active_peft_config", None)
    expect(
        not getattr(learns, "is_prompt_learning", False),
        "model",
        f"PEFT's {getattr(learns, 'peft_type', '')}",
        "adapters that wrap modules, such as LoRA; prompts change the inputs themselves",
    )
    main = str(getattr(whole, "main_input_name", ""))
    inputs = {main: x} if isinstance(x, Tensor) else dict(x or {main: _example(whole.config, main)})
    expect(main in inputs, "example", f"inputs {', '.join(inputs)}", f"the model's main input, {main!r}")
    s = find(whole, inputs)
    config: Any = whole.config
    codes = not inputs[main].is_floating_point()
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    row = () if codes else tuple(inputs[main].shape[1:])
    fake = Fake(main, row, inputs[main].dtype, getattr(text, "pad_token_id", None))
    layers = list(whole.get_submodule(s.layers).children())
    before = {path: whole.get_submodule(path) for path in s.before}
    after = {path: whole.get_submodule(path) for path in s.after}

    owned = {path: module for path, module in before.items() if not _constant(module)}

    def shell(replaced: Mapping[str, nn.Module]) -> Shell:
        passed = Passed()
        notes = [Note(layer, passed, i == len(layers) - 1, s.tuples) for i, layer in enumerate(layers)]
        stand = {path: StandIn(module, passed) for path, module in replaced.items()}
        return Shell(whole, s, {s.layers: nn.ModuleList(notes), **stand}, passed)

    positions = getattr(text, "max_position_embeddings", None) if codes else None
    prepares, names = shell(owned | after), [f"{s.layers}.{i}" for i in range(len(layers))]
    blocks: list[nn.Module] = [Stem(owned, shell(after), main, positions)]
    for i, (name, layer) in enumerate(zip(names, layers, strict=True)):
        blocks.append(Layer({name: layer}, i, prepares, fake))
    blocks.append(Head(after, shell(owned), fake))
    made = Layered(model, blocks, [[*list(owned)[-1:], "embeddings"], *([name] for name in names), ["head"]], False)
    _refuse_outside(whole, blocks)
    share_buffers(blocks)
    return made, inputs


def _example(config: Any, main: str) -> Tensor:
    """Two rows of a model's main input."""
    if main != "pixel_values":
        return torch.arange(8).remainder(config.get_text_config().vocab_size).expand(2, 8)
    sides = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
    return torch.zeros(2, config.num_channels, *sides)


def _constant(module: nn.Module) -> bool:
    """Whether a module only holds constants, such as frequencies: every side has it."""
    return next(module.parameters(), None) is None and next(module.buffers(), None) is not None


def _refuse_outside(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    held = {id(p) for block in blocks for p in block.parameters()}
    outside = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    expect(not outside, "model", ", ".join(outside[:8]), "no trainable parameter outside embeddings, layers and head")


@torch.no_grad()
def refuse_hidden_padding(made: Layered, x: Mapping[str, Tensor]) -> None:
    """Refuse rows without a mask, if the head looks for padding among the tokens: there they are not known."""
    config: Any = inner(made.model).config
    main, pad = next(iter(x)), getattr(config, "pad_token_id", None)
    if pad is None or BESIDE[0] in x or x[main].is_floating_point() or x[main].shape[1] < 2:
        return
    padded = {**x, main: torch.cat([x[main][:, :-1], torch.full_like(x[main][:, -1:], pad)], dim=1)}
    copy = twin(made).eval()
    with OwnRandomness():
        same = torch.equal(copy(padded), copy.in_order(padded))
    words = f"{main!r} alone; the model's head looks for padding"
    expect(same, "inputs", words, f"{BESIDE[0]!r} beside it, which is 0 where a row is padded")
