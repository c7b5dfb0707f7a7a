"""Trackio: a database in `RUN/track/trackio`, or in the folder that TRACKIO_DIR names.

Trackio has one folder and one run for each process, so it gets a process of its own (`trackio_child.py`). The run there
is written again from the journal when it is resumed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlayer.errors import StoreError, expect
from cutlayer.track.base import PROJECT, About, Row, last

REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
PATIENCE = 60.0  # seconds for the process to write everything out


class Trackio:
    def __init__(self, about: About, known: Sequence[Row]) -> None:
        for name in REMOTE:
            given = os.environ.get(name)
            expect(not given, name, given, "a folder on this machine; `trackio sync` uploads what is there")
        run = about.note() or about.keep(uuid.uuid4().hex[:8])
        self._last, self._errors = last(known), about.folder / "errors.log"
        with self._errors.open("wb") as errors:
            self._child = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", str(Path(__file__).with_name("trackio_child.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={"TRACKIO_DIR": str(about.folder), **os.environ},
                start_new_session=True,  # it ends when its input does, not by Ctrl-C
                text=True,
            )
        names = {"project": PROJECT, "name": f"{about.label}-{run}", "group": about.group}
        self._say({**names, "config": dict(about.config)})
        for one in known:
            self.log(one)

    def log(self, row: Row) -> None:
        self._last = row.step
        self._say({"step": row.step, "metrics": dict(row.values)})

    def close(self, status: str, summary: Mapping[str, float]) -> None:
        if summary:
            self.log(Row(self._last, summary))
        try:
            self._child.communicate(timeout=PATIENCE)
        except (OSError, subprocess.TimeoutExpired) as error:
            self._child.kill()
            raise self._failure() from error
        if self._child.returncode != 0:
            raise self._failure()

    def _say(self, words: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(words) + "\n")
            self._child.stdin.flush()
        except OSError as error:
            self._child.kill()
            raise self._failure() from error

    def _failure(self) -> StoreError:
        self._child.wait()
        said = self._errors.read_text(errors="replace").strip().splitlines() or ["its process ended"]
        return StoreError(f"{self._errors}: {said[-1]}")
