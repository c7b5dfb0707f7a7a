"""Checkpoints: what a run continues from after a crash, or after one of its files was damaged.

    checkpoints/000012/        global.safetensors, and manifest.json: round, folder, config, and what belongs to it
    checkpoints/owned/         client-17.000012.safetensors: what an owner kept, as of a round; written once, whole
    checkpoints/owned/copies/  a second copy, where both checkpoints need it
    checkpoints/journal.*      a copy of the journal so far, with checksums

A checkpoint is written aside, synced, then renamed, so that it is there whole or not at all. The last two are kept, and
there are two copies of everything that both need.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cutlayer.clients.state import Owner
from cutlayer.core.files import move, persistently, sync, write_aside
from cutlayer.core.sealed import pack, seal, seal_of, unpack, unseal
from cutlayer.engine.records import Global
from cutlayer.engine.spill import OwnedState, OwnedStates
from cutlayer.errors import StoreError
from cutlayer.experiment import journal
from cutlayer.nn.flat import Vectors

FORMAT = 5  # 5: every file has a checksum
KEEP = 2
FOLDER, OWNED, COPIES = "checkpoints", "owned", "copies"
WEIGHTS, MANIFEST = "global.safetensors", "manifest.json"


class LostJournal(UserWarning):
    """The journal ends before a checkpoint, so rounds are trained again."""


class DamagedCheckpoint(UserWarning):
    """A part of a checkpoint cannot be read; its copy is used, or the previous checkpoint."""


@dataclass(frozen=True)
class About:
    """What identifies a run: the text of its config, and a digest of its data ("": not known)."""

    config: str
    data: str = ""


def save(run: Path, state: Global, about: About) -> None:
    """Write a checkpoint of `state` and remove all but the last two. Owned states already written are not rewritten."""
    persistently(lambda: _save(run, state, about), run / FOLDER)


def _save(run: Path, state: Global, about: About) -> None:
    folder = run / FOLDER
    if not folder.exists():
        folder.mkdir()
        sync(run)
    final, aside = folder / f"{state.n:06d}", folder / f".{state.n:06d}.tmp"
    for old in (final, aside):
        if old.exists():
            shutil.rmtree(old)
    aside.mkdir()
    owned = _save_owned(folder, state.owned)
    weights = pack(state.named())
    write_aside(aside / WEIGHTS, weights)
    manifest = {
        "format": FORMAT,
        "folder": final.name,
        "round": state.n,
        "weights": seal_of(weights),
        "config": about.config,
        "data": about.data,
        "owned": owned,
    }
    write_aside(aside / MANIFEST, seal(manifest).encode())
    journal.seal(run / journal.FILE)
    move(aside, final)
    sync(folder)
    for _, old in _numbered(folder)[:-KEEP]:
        shutil.rmtree(old)
    named = {entry["file"] for _, path in _numbered(folder) for entry in _manifest(path)["owned"].values()}
    for file in (*(folder / OWNED).glob("*.safetensors"), *(folder / OWNED / COPIES).glob("*.safetensors")):
        if file.name not in named:
            file.unlink()


def forget_after(run: Path, n: int) -> None:
    """Remove the checkpoints of rounds after n: their part of the journal is lost."""
    for number, path in _numbered(run / FOLDER):
        if number > n:
            shutil.rmtree(path)


def about(run: Path) -> About | None:
    """Return what the newest undamaged manifest says of the run, or None."""
    for _, path in reversed(_numbered(run / FOLDER)):
        if (manifest := _manifest(path)).get("format") == FORMAT:
            return About(manifest["config"], manifest["data"])
    return None


def config(run: Path) -> str | None:
    """Return the text of the run's config from the newest undamaged manifest, or None."""
    known = about(run)
    return None if known is None else known.config


def load(run: Path, like: Global, last: int) -> Global | None:
    """Load the newest undamaged checkpoint of a round up to `last`; warn of each that cannot be used.

    None: nothing can be loaded, but no round up to `last` has a checkpoint either, so starting again loses only time.
    """
    found = _numbered(run / FOLDER)
    for n, path in reversed(found):
        if n > last:
            warnings.warn(
                f"checkpoint {path} is passed over: the journal ends at round {last}", LostJournal, stacklevel=2
            )
            continue
        try:
            return _load(path, like)
        except (OSError, ValueError, KeyError, TypeError, StoreError) as error:
            warnings.warn(f"checkpoint {path} is damaged and passed over: {error}", DamagedCheckpoint, stacklevel=2)
    if any(0 < n <= last for n, _ in found):
        raise StoreError(f"{run}: none of its {len(found)} checkpoints can be read; start again with --overwrite")
    return None


def check(run: Path) -> None:
    """Raise if the newest checkpoint is damaged; a run without any is none the worse."""
    for _, path in _numbered(run / FOLDER)[-1:]:
        try:
            manifest = _sealed_manifest(path)
            _unpacked(path / WEIGHTS, manifest["weights"])
            for entry in manifest["owned"].values():
                _unpacked(_copies(path.parent, entry["file"])[0], entry["seal"])
        except (OSError, ValueError, KeyError, TypeError, StoreError) as error:
            raise StoreError(f"checkpoint {path} is damaged: {error}; written again") from error


def began_with(run: Path, state: Global) -> bool:
    """Whether `state`, built anew, equals the run's first checkpoint; also True if too little of that is left."""
    left = run / FOLDER / f"{0:06d}"
    known = _manifest(left).get("weights")
    if known is None:
        try:
            content = (left / WEIGHTS).read_bytes()
            unpack(content)
            known = seal_of(content)
        except (OSError, StoreError):
            return True
    return bool(known == seal_of(pack(state.named())))


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in a folder, by round."""
    return sorted((int(path.name), path) for path in folder.glob("[0-9]*") if path.name.isdecimal())


def _manifest(path: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest; an empty one if it is damaged, which `load` will report."""
    try:
        return _sealed_manifest(path)
    except (OSError, ValueError, StoreError):
        return {"owned": {}}


def _sealed_manifest(path: Path) -> dict[str, Any]:
    manifest = unseal((path / MANIFEST).read_bytes())
    if manifest["format"] != FORMAT:
        raise StoreError(f"format {manifest['format']}, expected {FORMAT}")
    if manifest["folder"] != path.name:
        raise StoreError(f"it was written as {manifest['folder']}")
    return manifest


def _load(path: Path, like: Global) -> Global:
    manifest = _sealed_manifest(path)
    tensors = _unpacked(path / WEIGHTS, manifest["weights"])
    for name, ours in zip(Vectors._fields, like.W, strict=True):
        theirs = tensors[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            raise StoreError(
                f"{name} has {tuple(theirs.shape)} {theirs.dtype}, the model {tuple(ours.shape)} {ours.dtype}"
            )
    owned = {Owner(owner): _found(path.parent, entry) for owner, entry in manifest["owned"].items()}
    here = {name: x if name.startswith("participations.") else x.to(like.W.w.device) for name, x in tensors.items()}
    return Global.read(manifest["round"], here, owned)


def _save_owned(folder: Path, kept: OwnedStates) -> dict[str, dict[str, Any]]:
    """Write the owned states that are new, and a second copy of those that the previous checkpoint needs too. Return
    the manifest's entries."""
    before: dict[str, dict[str, Any]] = {}
    for _, path in _numbered(folder):
        before |= {entry["file"]: entry for entry in _manifest(path)["owned"].values()}
    (folder / OWNED / COPIES).mkdir(parents=True, exist_ok=True)
    entries: dict[str, dict[str, Any]] = {}
    for owner, owned in kept.items():
        name = f"{owner.replace('/', '-')}.{owned.version:06d}.safetensors"
        file, again = _copies(folder, name)
        if name not in before:
            content = owned.bytes()
            write_aside(file, content)
            entries[owner] = {"file": name, "version": owned.version, "seal": seal_of(content)}
            continue
        entries[owner] = before[name]
        for copy in (file, again):
            if not copy.exists():
                write_aside(copy, owned.bytes())
    return entries


def _found(folder: Path, entry: Mapping[str, Any]) -> OwnedState:
    """Read an owned state from either of its copies; rewrite a damaged one from the other."""
    wrong: dict[Path, Exception] = {}
    whole: Path | None = None
    copies = _copies(folder, entry["file"])
    for path in copies:
        try:
            _unpacked(path, entry["seal"])
            whole = whole or path
        except (OSError, StoreError) as error:
            wrong[path] = error
    if whole is None:
        raise StoreError(str(wrong[copies[0]]))
    for path, why in wrong.items():
        if path == copies[0] or path.exists():
            warnings.warn(f"{path}: {why}; written again from its copy", DamagedCheckpoint, stacklevel=6)
            write_aside(path, whole.read_bytes())
    return OwnedState(int(entry["version"]), None, copies[0])


def _copies(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / OWNED / name, folder / OWNED / COPIES / name


def _unpacked(path: Path, expected: str) -> dict[str, Tensor]:
    content = path.read_bytes()
    try:
        tensors, _ = unpack(content)
    except StoreError as error:
        raise StoreError(f"{path.name}: {error}") from error
    if seal_of(content) != expected:
        raise StoreError(f"{path.name}: not what belongs to this checkpoint")
    return tensors
