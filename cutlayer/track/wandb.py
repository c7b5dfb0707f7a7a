"""Weights & Biases: offline in `RUN/track/wandb`, unless WANDB_MODE says otherwise; `wandb sync` uploads what is there.

Offline, the files of the run are written again from the journal when it is resumed. Online, the server says which
rounds it has, and these are skipped.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from cutlayer.track.base import PROJECT, About, Row


class WandB:
    def __init__(self, about: About, known: Sequence[Row]) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        place = Path(os.environ.get("WANDB_DIR", about.folder))
        place.mkdir(parents=True, exist_ok=True)
        run = os.environ.get("WANDB_RUN_ID") or about.note() or about.keep(uuid.uuid4().hex[:12])
        for old in place.glob(f"wandb/offline-run-*-{run}") if mode == "offline" else ():
            shutil.rmtree(old)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", about.label),
            group=os.environ.get("WANDB_RUN_GROUP", about.group),
            id=run,
            dir=str(place),
            mode=mode,
            config=dict(about.config),
            resume=None if mode == "offline" else "allow",
            reinit="create_new",  # a program may have runs of its own
            settings=wandb.Settings(silent=True, console="off"),
        )
        for one in known:
            if one.step >= self._run.step:
                self.log(one)

    def log(self, row: Row) -> None:
        self._run.log(dict(row.values), step=row.step, commit=True)

    def close(self, status: str, summary: Mapping[str, float]) -> None:
        self._run.summary.update({**summary, "status": status})
        self._run.finish(exit_code=int(status == "diverged"))
