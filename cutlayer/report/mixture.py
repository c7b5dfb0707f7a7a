"""The figure of a partition: how many rows each client holds, of which classes, and how uneven the mixture is."""

from __future__ import annotations

import io

import matplotlib.figure
import numpy as np
from numpy.typing import NDArray

from cutlayer.data.parts import divergence

SHOWN = 200  # at most so many clients, and so many classes, in the heat map
DOTS = 10_000
COLOR = "#4477aa"


def draw(counts: NDArray[np.int64], title: str) -> bytes:
    """Draw the figure, as PNG; `counts`: how many rows of each class every client holds."""
    figure = matplotlib.figure.Figure(figsize=(13, 4.2), layout="constrained")
    figure.suptitle(title, fontsize=11)
    heat, sizes, skew = figure.subplots(1, 3, width_ratios=(1.4, 1, 1))
    rows, far = counts.sum(axis=1), divergence(counts)
    shown = counts[:SHOWN, :SHOWN]
    share = shown / np.maximum(rows[:SHOWN, None], 1)
    image = heat.imshow(share.T, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest", origin="lower")
    figure.colorbar(image, ax=heat, label="share of the client's rows", shrink=0.85)
    cut = f" (the first {SHOWN})" if len(counts) > SHOWN else ""
    heat.set(xlabel=f"client{cut}", ylabel="class", title="Label mixture")
    sizes.hist(rows, bins=min(30, max(5, len(np.unique(rows)))), color=COLOR)
    sizes.axvline(float(np.median(rows)), color="#222222", linestyle="--", linewidth=1)
    sizes.set(xlabel="rows of a client (dashed: median)", ylabel="clients", title="Sizes")
    some = slice(None, None, max(1, len(rows) // DOTS))
    skew.scatter(rows[some], far[some], s=14, color=COLOR, alpha=0.7, linewidths=0)
    skew.set(xlabel="rows", ylabel="J-S divergence from an even mixture", title="Size and skew", ylim=(0, 1))
    for axes in (sizes, skew):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
