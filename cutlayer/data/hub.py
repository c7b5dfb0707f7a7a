"""Data sets from the Hugging Face hub, through `datasets` (the `hf` extra): fetched once, kept as Parquet."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from cutlayer.data import cache
from cutlayer.errors import StoreError


@dataclass(frozen=True)
class Place:
    """Where a data set is on the hub; `test`: the split of its test rows, None if it has none."""

    path: str
    test: str | None = "test"


def installed() -> bool:
    """Whether the `hf` extra is installed."""
    return importlib.util.find_spec("datasets") is not None


def fetch(name: str, place: Place) -> Path:
    """Return a folder with the data set's Parquet files; download those that are missing."""
    folder = cache.folder() / "hub" / name
    splits = ["train"] if place.test is None else ["train", place.test]
    missing = [split for split in splits if not (folder / f"{split}.parquet").is_file()]
    if not missing:
        return folder
    import datasets

    folder.mkdir(parents=True, exist_ok=True)
    try:
        for split in missing:
            rows = datasets.load_dataset(place.path, split=split)
            aside = folder / f".{split}.{os.getpid()}.tmp"  # two processes may fetch at once
            try:
                rows.to_parquet(str(aside))
                aside.replace(folder / f"{split}.parquet")
            finally:
                aside.unlink(missing_ok=True)
    except Exception as error:  # the network and the hub may raise anything
        words = f"{type(error).__name__}: {error}"
        raise StoreError(f"task {name!r}: {place.path} cannot be fetched from the Hugging Face hub: {words}") from error
    return folder
