"""Trackers for tests: one that writes what it is told into a file, and ones that fail."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlayer.track.base import About, Row
from cutlayer.track.names import Known

FAKE, BROKEN = Known("tests.track.fakes:Fake"), Known("tests.track.fakes:Broken")


class Fake:
    def __init__(self, about: About, known: Sequence[Row]) -> None:
        self.path, self.told = about.folder / "told.json", (about.label, about.group, dict(about.config))
        self.lives = [*(read(self.path)["lives"] if self.path.exists() else []), len(known)]
        self.rows, self.status, self.summary = list(known), "running", dict[str, float]()
        self.save()

    def log(self, row: Row) -> None:
        self.rows.append(row)
        self.save()

    def close(self, status: str, summary: Mapping[str, float]) -> None:
        self.status, self.summary = status, dict(summary)
        self.save()

    def save(self) -> None:
        rows = [[row.step, dict(row.values)] for row in self.rows]
        label, group, config = self.told
        told = {"label": label, "group": group, "config": config, "rows": rows, "lives": self.lives}
        self.path.write_text(json.dumps({**told, "status": self.status, "summary": self.summary}))


class Broken(Fake):
    """Fails in the method that `FAILS` names."""

    FAILS = "__init__"

    def __init__(self, about: About, known: Sequence[Row]) -> None:
        self.fail("__init__")
        super().__init__(about, known)

    def log(self, row: Row) -> None:
        self.fail("log")
        super().log(row)

    def close(self, status: str, summary: Mapping[str, float]) -> None:
        self.fail("close")

    def fail(self, method: str) -> None:
        if method == self.FAILS:
            raise ConnectionError("no server\nat all")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
