"""docs/architecture.md says how to add a scheme, an optimizer, ...: this does each of them, in a copy of the package.

Every extension touches the files that the document names, and no others; then one run uses all of them at once.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
NEW = ""
"""In place of an anchor: the file is a new one."""
END = "$"
"""In place of an anchor: the end of the file."""
Extension = dict[str, tuple[str, str]]
"""File -> (part of the line it comes after, the text that is added)."""

EXTENSIONS: dict[str, Extension] = {
    "a scheme": {
        "registry/schemes.py": (
            "SCHEMES: dict[str, Part] = {",
            '    "median": Part("own_scheme:MedianServer", "the median client\'s server half", "-", about={}),\n',
        ),
    },
    "an optimizer": {
        "optim/sign.py": (
            NEW,
            '''from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class SignSGD:
    """w <- w - eta*sign(g)."""

    lr: float = 0.01
    decay: float = 1.0
    weight_decay: float = 0.0
    moments: ClassVar[int] = 0
    decoupled: ClassVar[bool] = True
    remembers: ClassVar[bool] = False

    def regularise(self, g: Tensor, w: Tensor) -> None:
        pass

    def update(self, w: Tensor, g: Tensor, m: Sequence[Tensor], eta: float, t: int) -> None:
        w.sub_(g.sign(), alpha=eta)
''',
        ),
        "registry/optimizers.py": (
            "OPTIMIZERS: dict[str, Part] = {",
            '    "sign": Part("cutlayer.optim.sign:SignSGD", "the sign of the gradient", "-"),\n',
        ),
    },
    "a local rule or an update": {
        "optim/update.py": (
            END,
            '''

@dataclass(frozen=True)
class Halfway:
    """Half of the way to the mean."""

    def __call__(self, W: Tensor, W_bar: Tensor, state: State, eta: Eta) -> Tensor:
        return (W + W_bar) / 2
''',
        ),
        "registry/optimizers.py": (
            "UPDATES: dict[str, Part] = {",
            '    "halfway": Part("cutlayer.optim.update:Halfway", "half of the way to the mean", "-", about={}),\n',
        ),
    },
    "a model": {
        "models/two_layers.py": (
            NEW,
            """import math

from torch import nn


def two_layers(shape, classes, width=4):
    first = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.Tanh())
    return nn.Sequential(first, nn.Linear(width, classes))
""",
        ),
        "models/__init__.py": (
            "from cutlayer.models.transformer import transformer",
            "from cutlayer.models.two_layers import two_layers\n",
        ),
        "registry/models.py": (
            "MODELS: dict[str, Part] = {",
            '    "two_layers": Part("cutlayer.models.two_layers:two_layers", "two layers", "-"),\n',
        ),
    },
    "a data set": {
        "data/read/stripes.py": (
            NEW,
            """import numpy as np

from cutlayer.data.rows import Bundle, Form, StoredRows


def read(folder):
    with np.load(folder / "stripes.npz") as file:
        x, y = file["x"], file["y"]
    return Bundle(StoredRows(x[20:], y[20:]), StoredRows(x[:20], y[:20]))


def files(folder):
    return [folder / "stripes.npz"] if (folder / "stripes.npz").exists() else []


FORM = Form("stripes.npz", files, read)
""",
        ),
        "data/tasks.py": (
            "SOURCES: dict[str, Source] = {",
            '    "stripes": Source(2, (stripes.FORM,), Pixels()),\n',
        ),
        "registry/data.py": (
            "TASKS: dict[str, Task] = {",
            '    "stripes": Task("pictures of stripes, 2 classes", "-", "two_layers", 0),\n',
        ),
    },
    "a column of the journal": {
        "engine/records.py": (
            "    faults: tuple[str, ...] = ()",
            "    energy: float | None = None\n",
        ),
        "engine/round.py": ("            faults=tuple(map(str, faults)),", "            energy=1.5 * tally.steps,\n"),
    },
    "a field of a message": {
        "clients/messages.py": ("    clipped: int = 0", "    joules: float = 0.0\n"),
        "clients/client.py": ("            self._count(),", "            1.5 * self.taken,\n"),
    },
}
USES: Extension = {  # the place that uses the new field, and an import
    "engine/round.py": (
        "        ledger.clients = [report.address.client for report in reports]",
        '        assert all(report.joules > 0 for report in reports), "a client has reported no energy"\n',
    ),
    "data/tasks.py": ("from cutlayer.data import cache, given, hub", "from cutlayer.data.read import stripes\n"),
}
RUN = (
    *("run", "--task", "stripes", "--scheme", "median", "--optimizer", "sign", "--update", "halfway"),
    *("--clients", "3", "--partition", "iid", "--rounds", "2", "--batch-size", "8", "--local-epochs", "1", "--quiet"),
)


def paragraph(what: str) -> str:
    """What the document says of it."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    found = re.search(rf"^\*\*{what}\.\*\*(.*?)(?=^\*\*|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, what
    return found[1]


@pytest.mark.parametrize("what", EXTENSIONS)
def test_the_document_names_the_files(what: str) -> None:
    said = paragraph(what)
    for file, (anchor, _) in EXTENSIONS[what].items():
        place = f"`{file.rpartition('/')[0]}/`" if anchor == NEW else f"`{file}`"
        assert place in said, f"{what}: {place} is not in the document"


def added(package: Path, extension: Extension) -> None:
    for file, (anchor, text) in extension.items():
        path = package / file
        if anchor == NEW:
            assert not path.exists()
            path.write_text(text)
            continue
        lines = path.read_text().splitlines(keepends=True)
        (at,) = (n for n, line in enumerate(lines, 1) if anchor in line) if anchor != END else (len(lines),)
        path.write_text("".join([*lines[:at], text, *lines[at:]]))


def test_each_of_them_works(tmp_path: Path) -> None:
    """One run with all of them."""
    package = tmp_path / "cutlayer"
    shutil.copytree(ROOT / "cutlayer", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "examples" / "own_scheme.py", tmp_path)
    for extension in (*EXTENSIONS.values(), USES):
        added(package, extension)
    (tmp_path / "data" / "stripes").mkdir(parents=True)
    y = np.arange(80) % 2
    x = np.where(y[:, None, None, None] == 1, np.arange(8)[None, None, :, None] % 2, np.arange(8) % 2)
    np.savez(tmp_path / "data" / "stripes" / "stripes.npz", x=(255 * x).astype(np.uint8), y=y)
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "cutlayer", *RUN, "--data-dir", str(tmp_path / "data"), "--out", str(out)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    assert [record["energy"] for record in rounds] == [1.5 * record["steps"] for record in rounds] == [9.0, 9.0]
    text = (out / "config.toml").read_text()
    assert all(f'"{name}"' in text for name in ("stripes", "median", "sign", "halfway", "two_layers"))
