"""A run directory, and what survives a crash.

    config.toml          the whole text of the run            journal.jsonl     one line a round
    blocks.json          the model's blocks in numbers
    checkpoints/000012/  global.safetensors + manifest.json   model.safetensors, front.*, back.*   at the end
    checkpoints/kept/    client-17.000012.safetensors: what an owner kept, as of a round; written once, whole
    fronts/              client-17.safetensors: the front of each client that keeps its own, at the end
    summary.json         what came out                        report.html, curves.png              the picture
    serve.toml           how clients elsewhere are served     roster.json       who they are, by number

A checkpoint is written aside, synced, then renamed: it is there whole or not at all. The last two are kept.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from cutlayer.errors import StoreError
from cutlayer.files import move, sync, write_aside
from cutlayer.flat import Vectors
from cutlayer.kept import Kept, Parcel
from cutlayer.records import Global

FORMAT = 3  # since convolutions' kernels lie channels last
KEEP = 2
SPILL = ".spill"  # what did not fit in memory, while a run is under way
HEADER = "# Written by cutlayer: the whole text of this run.\n"
_REPORT = ("curves.png", "table.json", "table.md", "report.html")
OWN = {  # all that --overwrite may remove
    "config.toml": (
        *("checkpoints", "journal.jsonl", "summary.json", "blocks.json", "serve.toml", "roster.json"),
        *("model.safetensors", "front.safetensors", "back.safetensors", "fronts"),
        *_REPORT,
    ),
    "compare.toml": ("runs", *_REPORT),
}


class LostJournal(UserWarning):
    """The journal ends before a checkpoint; rounds are trained again."""


class DamagedCheckpoint(UserWarning):
    """A checkpoint could not be read whole; the one before it is used."""


def claim(path: Path, name: str, text: str, overwrite: bool) -> None:
    """Make a new run directory with its config in it; an older run in the way is refused or, if asked, removed."""
    ours = [kind for kind in OWN if _is_ours(path / kind)]
    if ours and not overwrite:
        raise StoreError(f"{path} already holds a run: continue it with `cutlayer resume {path}`, or give --overwrite")
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path} is a file: choose another --out")
    if not ours and path.exists() and any(not entry.name.startswith(".") for entry in path.iterdir()):
        raise StoreError(f"{path} is not empty and holds no run: choose another --out")
    if ours:
        Lock(path).close()  # not while somebody trains in it
    for kind in ours:
        for old in (*OWN[kind], kind):  # the config last, so that a half-removed run is still known as one
            shutil.rmtree(path / old) if (path / old).is_dir() else (path / old).unlink(missing_ok=True)
    path.mkdir(parents=True, exist_ok=True)
    write_aside(path / name, f"{HEADER}{text}".encode())


def _is_ours(path: Path) -> bool:
    """Whether a config.toml or compare.toml was written by us."""
    return path.is_file() and path.read_bytes().startswith(HEADER.encode())


class Lock:
    """A folder claimed by this process: until it is closed or forgotten, or the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StoreError(f"{folder}: no such folder")
        self._lock = FileLock(folder / ".lock", thread_local=False)  # any thread may close it
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            raise StoreError(f"{folder}: another process is training here") from error
        except OSError as error:
            raise StoreError(f"{folder}: cannot be locked: {error}") from error

    def close(self) -> None:
        self._lock.release(force=True)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def save(run: Path, state: Global) -> None:
    """Checkpoint `state`, then forget all but the last two. What has not changed since is not written again."""
    folder = run / "checkpoints"
    if not folder.exists():
        folder.mkdir()
        sync(run)
    final, aside = folder / f"{state.n:06d}", folder / f".{state.n:06d}.tmp"
    for old in (final, aside):
        if old.exists():
            shutil.rmtree(old)
    aside.mkdir()
    kept = _save_kept(folder, state.kept)
    content = save_tensors(_named(state))
    write_aside(aside / "global.safetensors", content)
    manifest = {
        "format": FORMAT,
        "round": state.n,
        "files": {
            "global.safetensors": {"owner": "server", "version": state.n, "sha256": hashlib.sha256(content).hexdigest()}
        },
        "kept": kept,
    }
    write_aside(aside / "manifest.json", json.dumps(manifest, indent=1).encode())
    move(aside, final)
    sync(folder)
    for old in sorted(folder.glob("[0-9]*"))[:-KEEP]:
        shutil.rmtree(old)
    named = {entry["file"] for path in folder.glob("[0-9]*") for entry in _manifest(path)["kept"].values()}
    for file in (folder / "kept").glob("*.safetensors"):
        if file.name not in named:
            file.unlink()


def forget_after(run: Path, n: int) -> None:
    """Remove checkpoints of later rounds than n: they belong to a training whose journal is lost."""
    for path in (run / "checkpoints").glob("[0-9]*"):
        if int(path.name) > n:
            shutil.rmtree(path)


def _save_kept(folder: Path, kept: Kept) -> dict[str, dict[str, Any]]:
    """Write what no earlier checkpoint has written; the manifest's entry of everything."""
    before: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("[0-9]*")):
        before |= {entry["file"]: entry for entry in _manifest(path)["kept"].values()}
    (folder / "kept").mkdir(exist_ok=True)
    entries = {}
    for owner, parcel in kept.items():
        name = f"{owner.replace('/', '-')}.{parcel.version:06d}.safetensors"
        if name in before:
            entries[owner] = before[name]
            continue
        content = parcel.bytes()
        write_aside(folder / "kept" / name, content)
        entries[owner] = {"file": name, "version": parcel.version, "sha256": hashlib.sha256(content).hexdigest()}
    return entries


def _load_kept(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> Kept:
    kept = {}
    for owner, entry in entries.items():
        path = folder / "kept" / entry["file"]
        if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            raise StoreError(f"kept/{entry['file']} does not match its checksum")
        kept[owner] = Parcel(int(entry["version"]), None, path)
    return kept


def _manifest(path: Path) -> dict[str, Any]:
    """A checkpoint's manifest; an empty one where it is damaged, which its own load will say."""
    try:
        manifest: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
        return {"kept": {}, **manifest}
    except (OSError, ValueError, TypeError):
        return {"kept": {}}


def load(run: Path, like: Global, last: int) -> Global | None:
    """The newest whole checkpoint of a round up to `last`, or None; one that cannot be used is named in a warning."""
    found = sorted((run / "checkpoints").glob("[0-9]*"), reverse=True)
    for path in found:
        if int(path.name) > last:
            warnings.warn(
                f"checkpoint {path} is passed over: the journal ends at round {last}", LostJournal, stacklevel=2
            )
            continue
        try:
            return _load(path, like)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, StoreError) as error:
            warnings.warn(f"checkpoint {path} is damaged and passed over: {error}", DamagedCheckpoint, stacklevel=2)
    if any(int(path.name) <= last for path in found):
        raise StoreError(f"{run}: none of its {len(found)} checkpoints can be read; start again with --overwrite")
    return None


def _load(path: Path, like: Global) -> Global:
    manifest = json.loads((path / "manifest.json").read_bytes())
    if manifest["format"] != FORMAT:
        raise StoreError(f"format {manifest['format']}, expected {FORMAT}")
    content = (path / "global.safetensors").read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["files"]["global.safetensors"]["sha256"]:
        raise StoreError("global.safetensors does not match its checksum")
    tensors = load_tensors(content)
    W = Vectors(*(tensors.pop(name).to(like.W.w.device) for name in Vectors._fields))
    for name, ours, theirs in zip(Vectors._fields, like.W, W, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            raise StoreError(
                f"{name} has {tuple(theirs.shape)} {theirs.dtype}, the model {tuple(ours.shape)} {ours.dtype}"
            )
    clients, rounds = (tensors.pop(f"turns.{name}").tolist() for name in ("client", "rounds"))
    update = {name.removeprefix("update."): tensor.to(like.W.w.device) for name, tensor in tensors.items()}
    kept = _load_kept(path.parent, manifest["kept"])
    return Global(int(manifest["round"]), W, update, kept, dict(zip(clients, rounds, strict=True)))


def _named(state: Global) -> dict[str, Tensor]:
    named = dict(zip(Vectors._fields, state.W, strict=True))
    named |= {f"update.{key}": tensor for key, tensor in state.update.items()}
    named["turns.client"] = torch.tensor(list(state.turns.keys()), dtype=torch.int64)
    named["turns.rounds"] = torch.tensor(list(state.turns.values()), dtype=torch.int64)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}


def tensor_bytes(tensor: Tensor) -> bytes:
    """The values of a tensor, little-endian, in row-major order."""
    array = (
        tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        if tensor.numel()
        else torch.empty(0, dtype=torch.uint8)
    )
    return array.numpy().tobytes()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the sorted names and the little-endian bytes: one number for all the weights."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensor_bytes(tensors[name]))
    return sha.hexdigest()


def save_model(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """A state dict as safetensors, with a few words about it."""
    named = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_aside(path, save_tensors(named, dict(about)))


def read_summary(run: Path) -> dict[str, Any] | None:
    """What a finished run left, or None."""
    path = run / "summary.json"
    if not path.exists():
        return None
    try:
        summary: dict[str, Any] = json.loads(path.read_bytes())
        if "status" not in summary or "rounds" not in summary:
            raise ValueError("no status in it")
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path}: damaged: {error}; remove it and resume the run") from error
    return summary
