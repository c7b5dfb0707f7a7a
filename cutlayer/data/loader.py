"""What a DataLoader of PyTorch's says of a client's rows."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, default_collate

from cutlayer.data.batch import Batches
from cutlayer.data.samples import Collate
from cutlayer.errors import ContractError, NoEffect, expect

ADDRESS = (
    "shuffle=False: random numbers have addresses here, so that a run can be repeated; give the dataset itself, and "
    "shuffle=True of the run shuffles it"
)


def unwrapped(loader: DataLoader[Any], name: str) -> tuple[Any, Collate | None, Batches]:
    """Return the dataset of a loader that reads it in order, its way of making batches (None: the usual one), and their
    size; refuse every other loader."""
    dataset, where = loader.dataset, f"{name}: the DataLoader's"
    sampler, batches = loader.sampler, loader.batch_sampler
    if batches is None:
        raise ContractError(f"{where} batch_size = None: expected a batch size; rows, not batches, are what is counted")
    if type(batches) is not BatchSampler:
        raise ContractError(f"{where} batch_sampler = {type(batches).__name__!r}: expected {ADDRESS}")
    if isinstance(dataset, IterableDataset):
        words = "0, because the order in which copies of an iterable take turns depends on how many they are"
        expect(loader.num_workers == 0, f"{where} num_workers", loader.num_workers, words)
    else:
        expect(type(sampler) is SequentialSampler, f"{where} sampler", type(sampler).__name__, ADDRESS)
        rows, held = len(sampler), len(dataset)  # type: ignore[arg-type]
        expect(rows == held, f"{where} sampler: rows", rows, f"those of the dataset, {held}")
        expect(getattr(loader, "in_order", True), f"{where} in_order", False, "True: batches have an order")
        if loader.num_workers:
            words = "a client reads its rows itself, when it needs them"
            warnings.warn(f"{where} num_workers = {loader.num_workers} has no effect: {words}", NoEffect, stacklevel=2)
    usual = loader.collate_fn is default_collate
    return dataset, None if usual else loader.collate_fn, Batches(batches.batch_size, batches.drop_last)
