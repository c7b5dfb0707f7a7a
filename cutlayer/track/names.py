"""The trackers by name. Nothing else is loaded before one is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cutlayer.core.extras import needs
from cutlayer.errors import expect, unknown


@dataclass(frozen=True)
class Known:
    """Where a tracker is (MODULE:CLASS), and the extra that brings its packages."""

    path: str
    extra: str | None = None


TRACKERS = {
    "tensorboard": Known("cutlayer.track.tensorboard:TensorBoard", "tb"),
    "mlflow": Known("cutlayer.track.mlflow:MLflow", "mlflow"),
    "wandb": Known("cutlayer.track.wandb:WandB", "wandb"),
    "trackio": Known("cutlayer.track.trackio:Trackio", "trackio"),
}


def asked(given: str | Sequence[str] | None, field: str = "track") -> tuple[str, ...]:
    """Return the trackers that were named, each once; refuse names that nobody knows, and packages that are missing."""
    named = (given,) if isinstance(given, str) else () if given is None else given
    fine = isinstance(named, tuple | list) and all(isinstance(name, str) for name in named)
    expect(fine, field, given, "the name of a tracker, or a list of names")
    for name in named:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if (extra := TRACKERS[name].extra) is not None:
            needs(extra)
    return tuple(dict.fromkeys(named))
