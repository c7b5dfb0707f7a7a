"""A thousand broken frames, to everybody who hears any: each is refused, or is a valid message."""

from __future__ import annotations

import functools
import os
import random
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from cutlayer.errors import ContractError, FrameError, StoreError
from cutlayer.network.transport.frames import Reader
from tests.network.fuzz import Fuzzer
from tests.network.test_fuzz import DOWN, Target, targets
from tests.nightly.runs import scratch

FRAMES = 1000


def play(seed: int, folder: Path) -> int:
    known, kept = heard(os.getpid())
    fuzzer = Fuzzer([target.piece for target in known], seed)
    often = [1 if target.kind in DOWN else 5 for target in known]  # those compute
    with patch("cutlayer.core.sealed.save_model", lambda *_: None):
        for n, target in enumerate(random.Random(seed).choices(known, often, k=FRAMES)):
            way, piece = fuzzer.one(target.piece)
            try:
                one(target, piece)
            except Exception as error:
                raise AssertionError(f"frame {n}, {target.kind}, {way}: {type(error).__name__}: {error}") from error
    assert all(path.read_bytes() == content for path, content in kept.items()), "what clients kept"
    return FRAMES


def one(target: Target, piece: bytes) -> None:
    with suppress(FrameError):
        frame = Reader(target.limit).read(piece)
        if frame is None:
            return
        try:
            target.heard(frame)
        except FrameError:
            raise
        except ContractError:
            if target.kind not in ("Ready", "Bye"):
                raise
        except StoreError:
            if target.kind != "Plan" or frame.words["confirmed"] == 3:
                raise


@functools.cache
def heard(owner: int) -> tuple[list[Target], dict[Path, bytes]]:
    """Everybody who hears frames, and what clients have kept on disk."""
    folder = scratch() / "frames"
    return targets(folder), {path: path.read_bytes() for path in folder.rglob("own-3.*")}
