"""Short runs over schemes, backends and options, to hold a device against the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cutlayer as cl
from cutlayer.data.rows import StoredRows
from cutlayer.data.transform import Pixels
from cutlayer.data.views import View
from cutlayer.models import transformer
from cutlayer.registry import SCHEMES


def pictures(n: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 8, 8, generator=draw), torch.randint(0, 4, (n,), generator=draw)


def words(n: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 9, (n, 5), generator=draw), torch.randint(0, 4, (n,), generator=draw)


def photographs(n: int, seed: int) -> View:
    """Stored images, standardised by channel; in training, shifted and mirrored."""
    draw = np.random.default_rng(seed)
    stored = StoredRows(draw.integers(0, 256, (n, 3, 8, 8), dtype=np.uint8), draw.integers(0, 4, n))
    return View(stored, np.arange(n), Pixels((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), pad=1, flip=True))


def network(width: int = 8, dropout: float = 0.0) -> nn.Sequential:
    """Convolutions with batch norm, and a server half whose size is `width`'s to choose."""
    torch.default_generator.manual_seed(1)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Dropout(dropout)),
        nn.Sequential(nn.Linear(8, width), nn.LayerNorm(width), nn.Tanh()),
        nn.Linear(width, 4),
    )


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0][:, -1]
        return out


class Attending(nn.Module):
    """A layer of a transformer with dropout, inside its attention too; the mean over the words."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x).mean(dim=1)
        return out


def encoder() -> nn.Sequential:
    torch.default_generator.manual_seed(3)
    return nn.Sequential(nn.Embedding(9, 8), Attending(), nn.Linear(8, 4))


def recurrent(kind: type[nn.RNNBase]) -> nn.Sequential:
    torch.default_generator.manual_seed(2)
    return nn.Sequential(nn.Embedding(9, 6), Last(kind(6, 5, batch_first=True)), nn.Linear(5, 4))


class Beside(nn.Module):
    """Gives a mask beside the activations."""

    def forward(self, h: Tensor) -> dict[str, Tensor]:
        return {"h": h, "on": (h.detach() > 0).flatten(1).sum(1) > 90}


class Masked(nn.Module):
    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return x["h"] * x["on"][:, None, None, None]


def beside() -> nn.Sequential:
    """Two tensors at the cut."""
    front, second, *back = network()
    return nn.Sequential(nn.Sequential(front, Beside()), nn.Sequential(Masked(), second), *back)


def attention() -> nn.Sequential:
    torch.default_generator.manual_seed(3)
    return transformer((5,), 4, vocabulary=9, width=8, heads=2, hidden=12, depth=2, dropout=0.0)


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and arguments of `cl.train`."""
    for scheme in SCHEMES:
        yield f"{scheme}", {"scheme": scheme, "backend": "loop"}
        yield f"{scheme} stacked", {"scheme": scheme, "backend": "stacked"}
    for scheme in ("smofi", "cyclepsl"):
        yield f"{scheme} cyclesl adam", {"scheme": scheme, "protocol": "cyclesl", "optimizer": "adam", "local_steps": 2}
    yield "dropout", {"scheme": "smofi", "model": network(dropout=0.3)}
    for backend in ("loop", "stacked"):
        attending = {"model": encoder(), "rows": words, "sizes": (8,) * 5}
        yield f"dropout in attention, {backend}", {"scheme": "smofi", "backend": backend, **attending}
    yield "lstm", {"scheme": "smofi", "model": recurrent(nn.LSTM), "rows": words}
    yield "gru", {"scheme": "sflv2", "model": recurrent(nn.GRU), "rows": words}
    yield "adaptive", {"scheme": cl.SMoFi(adaptive=True)}
    yield "adaptive, by weights", {"scheme": cl.SMoFi(adaptive=True, hist_norm="weights")}
    yield "fused clients", {"scheme": cl.SMoFi(fuse_clients=True)}
    yield "fused clients, adaptive", {"scheme": cl.SMoFi(fuse_clients=True, adaptive=True)}
    yield "aligned", {"scheme": cl.Aligned(kappa=0.5, fade=0.9, weights="samples", lam=0.5, rho=0.2), "calibrate": 0.5}
    yield "aligned, cycled", {"scheme": cl.Aligned(cycle=True, kappa=0.5)}
    yield "joint norm", {"scheme": "smofi", "local": cl.FedNAR(max_norm=1.0, norm="joint")}
    yield "clipped", {"scheme": "smofi", "clip": 0.5, "local": "fedprox"}
    yield "labels stay", {"scheme": "smofi", "labels": "stay"}
    yield "labels stay, merged", {"scheme": "mergesfl", "labels": "stay"}
    yield "noise", {"scheme": "smofi", "noise": 0.1}
    yield "accumulated", {"scheme": "smofi", "accumulate": 2, "batch_size": 2, "last_batch": "keep"}
    yield "slowmo", {"scheme": "fedavg", "update": "slowmo", "optimizer": cl.Lion(lr=1e-3)}
    yield "fednag", {"scheme": "fedavg", "update": "fednag"}
    yield "rates by step", {"scheme": "sflv1", "lr_schedule": cl.Warmup(2, 3), "server_optimizer": cl.AdamW(lr=1e-3)}
    sent: dict[str, Any] = {"data_on_device": "no"}
    for backend in ("loop", "stacked"):
        yield f"rows sent, {backend}", {"scheme": "smofi", "backend": backend, **sent}
        yield f"images, {backend}", {"scheme": "smofi", "backend": backend, "rows": photographs}
        yield f"images sent, {backend}", {"scheme": "smofi", "backend": backend, "rows": photographs, **sent}
        yield f"attention, {backend}", {"scheme": "smofi", "backend": backend, "model": attention(), "rows": words}
        yield f"two tensors at the cut, {backend}", {"scheme": "smofi", "backend": backend, "model": beside()}
        yield f"detail, {backend}", {"scheme": "smofi", "backend": backend, "detail": True}
    yield "rows sent, cycled", {"scheme": "cyclesfl", **sent}
    yield "autocast", {"scheme": "smofi", "backend": "loop", "autocast": "bfloat16"}
    yield "cut drawn anew", {"scheme": "smofi", "cut": (0, 2)}


def train(device: str, arguments: dict[str, Any]) -> cl.Result:
    """Five clients of different sizes, two rounds. `tested`: rows of the test set, where there is one for all."""
    given = {"model": network(), "rows": pictures, "batch_size": 4, "local_epochs": 1, "rounds": 2, **arguments}
    rows, sizes, tested = given.pop("rows"), given.pop("sizes", (9, 13, 17, 21, 25)), given.pop("tested", 40)
    clients = [rows(n, j) for j, n in enumerate(sizes)]
    each = given.get("protocol") == "cyclesl"
    test: Any = [rows(7, 50 + j) for j in range(len(sizes))] if each else rows(tested, 50)
    return cl.train(given.pop("model"), clients, test, device=device, **{"cut": 0, **given})


def weights(result: cl.Result) -> dict[str, Tensor]:
    """The weights of the global model and of every client that keeps a front, on the CPU."""
    models = {"global": result.model, **{f"client {j}": model for j, model in enumerate(result.clients)}}
    return {f"{name}.{key}": w.cpu() for name, model in models.items() for key, w in model.state_dict().items()}
