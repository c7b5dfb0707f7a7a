"""Read a run back from its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from cutlayer.core.extras import needs
from cutlayer.core.files import as_path
from cutlayer.engine.records import Global, Round
from cutlayer.engine.run import whole_of, with_weights
from cutlayer.errors import StoreError
from cutlayer.experiment import checkpoint, description, detail_file, journal, run_directory
from cutlayer.experiment.model_files import load
from cutlayer.nn.cut import Layout, blocks_of

# fields of a round that hold several values
LISTS = ("clients", "client_steps", "client_samples", "series", "faults", "more", "detail")


@dataclass(frozen=True)
class RunFolder:
    """A run as its folder has it. `status`: "complete", "diverged" or "unfinished"."""

    out: Path
    config: dict[str, Any]
    history: list[Round]
    summary: dict[str, Any] | None

    @property
    def status(self) -> str:
        return "unfinished" if self.summary is None else str(self.summary["status"])

    def __repr__(self) -> str:
        scored = [record.accuracy for record in self.history if record.accuracy is not None]
        best = f", best accuracy {100 * max(scored):.2f} %" if scored else ""
        rounds = f"{len(self.history)} of {self.config.get('rounds')} rounds"
        return f"RunFolder {str(self.out)!r}: {self.status}, {rounds}{best}"

    def table(self) -> list[dict[str, Any]]:
        """Return one dictionary of plain numbers for each round."""
        rows = (asdict(record) for record in self.history)
        return [{name: value for name, value in row.items() if name not in LISTS} for row in rows]

    def to_pandas(self) -> Any:
        """Return the rounds as a pandas DataFrame, with the round as its index."""
        needs("pandas")
        import pandas

        return pandas.DataFrame(self.table()).set_index("n")

    def detail(self) -> dict[str, list[Any]]:
        """Return what the rounds were for each client, as columns (`train(detail=True)`); `n` is the round."""
        return detail_file.read(self.out / detail_file.FILE)

    def model(self, model: nn.Module | Callable[[], nn.Module] | None = None) -> nn.Module:
        """Return the model with the weights after the last round, ready for inference.

        model   the model, or a function that makes it; not needed where `cutlayer run` built it by name
        """
        file = self.out / ("adapter" if (self.out / "adapter").is_dir() else run_directory.MODELS[0])
        if self.status == "complete" or model is None:
            if not file.exists():
                raise StoreError(f"{file}: no such file, since the run is {self.status}; model= reads a checkpoint")
            return load(file, model)
        made = model if isinstance(model, nn.Module) else model()
        layout = Layout(len(blocks_of(made)), tail=int(self.config.get("labels") == "stay"))
        state = checkpoint.load(self.out, Global(0, whole_of(made, layout).read()), len(self.history))
        if state is None:
            raise StoreError(f"{self.out}: none of its checkpoints can be read")
        return with_weights(made, layout, state.W).eval()


def open_run(out: str | Path) -> RunFolder:
    """Read a run that `cutlayer run`, `cl.train` or `cl.serve` wrote: `cl.open("runs/x")`. Nothing is imported or built
    that the folder names."""
    folder = as_path("out", out)
    if not folder.is_dir():
        raise StoreError(f"{folder}: no such folder")
    config = description.settle(folder / description.FILE, checkpoint.config(folder), "undo")
    return RunFolder(folder, config, journal.read(folder / journal.FILE), run_directory.read_summary(folder))
