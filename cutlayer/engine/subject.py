"""The model and data that the engine tries out before a run begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from cutlayer.clients.messages import Loss
from cutlayer.nn.cut import Layout, learns
from cutlayer.nn.flat import Half, Style, Vectors, half
from cutlayer.nn.nested import Inputs


@dataclass(frozen=True)
class Subject:
    """A model, where it is cut, the loss, and a few rows to try them on. `W`: the weights at the start."""

    model: nn.Module
    layout: Layout
    cuts: tuple[int, int]
    loss: Loss
    device: torch.device
    W: Vectors
    tried: Half  # all blocks, to be tried before the run
    x: Inputs
    y: Tensor
    crossings: Mapping[int, Sequence[str]] = field(default_factory=dict)  # names, where several tensors cross a cut

    @property
    def offsets(self) -> Sequence[tuple[int, int, int]]:
        """Where the client's part of the flat vectors ends, for each cut."""
        return self.tried.ends[self.layout.tail :]

    @property
    def redrawn(self) -> bool:
        """Whether the cut is drawn anew every round."""
        return self.cuts[0] != self.cuts[1]

    def front(self, cut: int, style: Style | None = None) -> Half:
        """Return the client's blocks."""
        return half(self.model, self.layout.client(cut), self.device, style)

    def back(self, cut: int, style: Style | None = None) -> Half:
        """Return the server's blocks."""
        made = half(self.model, self.layout.server(cut), self.device, style)
        made.takes, made.returns = self.crossings.get(cut, ()), learns(self.model, cut)
        return made

    def whole(self) -> Half:
        """Return all blocks."""
        return half(self.model, self.layout.whole, self.device)
