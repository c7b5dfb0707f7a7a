"""Write the fixtures of a format: `python -m tests.formats.make`. One that is there already is never written again.

run-5-*.zip     a run directory, interrupted after two of its four rounds (checkpoint format 5)
run-5-*.json    what its checkpoint and journal hold
frames-2.json   every frame of the protocol, version 2, as it goes over the wire
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutlayer.clients.messages import Adopt, Momentum
from cutlayer.engine.records import Global
from cutlayer.experiment.checkpoint import FORMAT
from cutlayer.experiment.config import Config
from cutlayer.experiment.experiment import Experiment
from cutlayer.network.protocol.codec import encode
from cutlayer.network.protocol.handshake import Hello, Welcome, words
from cutlayer.network.transport.frames import VERSION, written
from tests.clients.test_codec import MESSAGES

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "width": 4, "depth": 2},
    "cut": 0,
    "clients": 4,
    "train_rows": 80,
    "rounds": 4,
    "batch_size": 8,
    "local_epochs": 1,
}
RUNS: dict[str, dict[str, Any]] = {
    "smofi": {"scheme": "smofi", "update": {"name": "fedavgm", "beta": 0.3}, "participation": 0.5},
    "psl": {"scheme": "psl", "protocol": "cyclesl", "optimizer": "adam"},
}
FRONT = [torch.arange(5.0), torch.arange(2.0), torch.tensor([7])]
WELCOME = Welcome("abc", (0, 1), "stay", "float32", "0" * 16, "none", "raw", False, {"name": "mlp"}, (4,), 3, "own")
OTHERS: dict[str, tuple[str, dict[str, Any], list[Tensor]]] = {
    "hello": ("Hello", words(Hello(name="ward-1")), []),
    "welcome": ("Welcome", words(WELCOME), []),
    "ready": ("Ready", {"samples": 12}, []),
    "refused": ("Refused", {"why": "client ward-1: its certificate has been revoked"}, []),
    "stop": ("Stop", {"round": 3, "attempt": 0, "why": "silent"}, []),
    "bye": ("Bye", {"cut": 0, "confirmed": 3}, FRONT),
    "diverged": ("Bye", {"why": "round 3: the test loss became nan"}, []),
}
STAY = ("next step", "finish")  # these messages never travel between machines


def frame(kind: str, said: dict[str, Any], tensors: list[Tensor], **how: Any) -> bytes:
    """A frame on the wire: the piece it goes in."""
    (piece,) = written(kind, said, tensors, **how)
    return piece


def numbered(message: Any) -> Any:
    """The message with other numbers in its random tensors: the same ones on every machine."""
    fixed = {}
    for one in dataclasses.fields(message):
        value = getattr(message, one.name)
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim:
            fixed[one.name] = _like(value)
        elif isinstance(message, Momentum | Adopt) and one.name == "m":
            fixed[one.name] = tuple(map(_like, value))
    return dataclasses.replace(message, **fixed)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x).copy_(torch.arange(x.numel(), dtype=x.dtype).view(x.shape) / 8)


def frames() -> dict[str, bytes]:
    """One frame of every kind, and one for every way to write tensors."""
    made = {name: frame(*encode(numbered(message))) for name, message in MESSAGES.items() if name not in STAY}
    made |= {name: frame(*other) for name, other in OTHERS.items()}
    some = ("Smashed", {"address": [3, 1, 2, 1], "y": 0}, [torch.arange(24.0).view(2, 3, 2, 2)])
    made["checked"] = frame(*some, check=True)
    made["compressed"] = frame(*some, zstd=True)
    made["half precision"] = frame(*some, code="float16")
    made["eight bits"] = frame(*some, code="int8")
    return made


def digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else b"")
        found.update(str((tensor.dtype, tuple(tensor.shape), tensor.item() if tensor.ndim == 0 else "")).encode())
    return found.hexdigest()[:32]


def held(state: Global) -> dict[str, Any]:
    """What a state holds, in digests."""
    return {
        "round": state.n,
        "W": digest(*state.W),
        "update": {name: digest(tensor) for name, tensor in sorted(state.update.items())},
        "owned": {
            owner: {name: digest(tensor) for name, tensor in sorted(owned.open().items())}
            for owner, owned in sorted(state.owned.items())
        },
        "participations": {str(j): n for j, n in sorted(state.participations.items())},
    }


def record(name: str, folder: Path) -> None:
    """A run directory and what it holds."""
    out = folder / name
    experiment = Experiment.start(Config(**(SMALL | RUNS[name])), out)
    for done in experiment:
        if done.n == 2:
            break
    about = {**held(experiment.run.state), "journal": (out / "journal.jsonl").read_text().splitlines()}
    (HERE / f"run-{FORMAT}-{name}.json").write_text(json.dumps(about, indent=1) + "\n")
    with zipfile.ZipFile(HERE / f"run-{FORMAT}-{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in out.rglob("*") if path.is_file() and path.name != ".lock"):
            archive.write(path, path.relative_to(out))


def main() -> None:
    for name in RUNS:
        if not (HERE / f"run-{FORMAT}-{name}.zip").exists():
            with tempfile.TemporaryDirectory() as folder:
                record(name, Path(folder))
    path = HERE / f"frames-{VERSION}.json"
    if not path.exists():
        path.write_text(json.dumps({name: piece.hex() for name, piece in frames().items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
