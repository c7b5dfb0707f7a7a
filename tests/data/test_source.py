"""What is refused of the rows that a user gives, and what the error says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

import cutlayer as cl
from cutlayer.data.schedule import BatchSchedule
from cutlayer.data.source import Source, digest_of, expect_batches, source
from cutlayer.errors import NoEffect

CPU = torch.device("cpu")


def made(given: Any) -> Source:
    return source(given, torch.float32, "clients[3]")


def take(given: Any, *rows: int) -> Any:
    return made(given).take(np.array(rows or (0, 1)), CPU)


def refused(match: str, given: Any, *rows: int) -> None:
    with pytest.raises(cl.ContractError, match=match):
        take(given, *rows)


class Yields(IterableDataset[Any]):
    """`rows` rows, which says that it has `says`."""

    def __init__(self, rows: int, says: int | None = None) -> None:
        self.rows, self.passes = rows, 0
        self.says = rows if says is None else says

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return ((torch.full((2,), float(i)), i) for i in range(self.rows))


ROWS = TensorDataset(torch.randn(8, 2), torch.arange(8))


def test_an_iterable_with_another_length() -> None:
    take(Yields(8), 6, 7)
    refused(r"clients\[3\]: a pass over it ended after 7 rows: expected 8, as stated", Yields(7, 8), 6, 7)
    refused(r"clients\[3\]: a pass over it goes on after 8 rows, its stated length", Yields(9, 8), 6, 7)
    take(cl.rows(Yields(9, 8), length=9), 7, 8)
    refused(r"clients\[3\]: a pass over it ended after 9 rows: expected 10", cl.rows(Yields(9), length=10), 9)


def test_an_iterable_without_a_length() -> None:
    class Bare(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(ROWS)

    refused(r"clients\[3\]: an iterable without len\(\): expected cl.rows\(data, length=...\)", Bare())
    refused(r"clients\[3\] = generator: it can be read only once", cl.rows((pair for pair in ROWS), length=8))
    x, y = take(cl.rows(Bare(), length=8), 7, 0)
    assert torch.equal(x, ROWS.tensors[0][[7, 0]]) and y.tolist() == [7, 0]


def test_a_stream_reads_ahead_and_begins_anew_only_to_go_back() -> None:
    rows = Yields(8)
    stream = made(rows)
    for some, passes in (((0, 0), 1), ((1, 2), 1), ((5, 7), 1), ((7,), 2), ((0, 3, 1), 3), ((4, 4), 3)):
        x, y = stream.take(np.array(some), CPU)
        assert y.tolist() == list(some) and isinstance(x, Tensor) and x[:, 0].tolist() == list(some)
        assert rows.passes == passes


def test_an_iterable_that_fails_is_read_again_from_its_start() -> None:
    class Fails(Yields):
        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            yield torch.zeros(2), 0
            if self.passes == 1:
                raise OSError("the disk is gone")
            yield torch.ones(2), 1

    stream = made(Fails(2))
    with pytest.raises(cl.ContractError, match=r"clients\[3\], one of rows \[0, 1\].*OSError: the disk is gone"):
        stream.take(np.arange(2), CPU)
    assert stream.take(np.arange(2), CPU)[1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("sampler = 'RandomSampler': expected shuffle=False: random numbers have addresses", {"shuffle": True}),
        ("sampler = 'RandomSampler'", {"sampler": RandomSampler(ROWS)}),
        ("sampler: rows = 5: expected those of the dataset, 8", {"sampler": SequentialSampler(range(5))}),
        ("batch_size = None: expected a batch size", {"batch_size": None}),
        ("batch_sampler = 'Odd'", {"batch_size": 1, "batch_sampler": "Odd"}),
        ("in_order = False", {"num_workers": 2, "in_order": False}),
    ],
)
def test_loaders_that_are_refused(match: str, options: dict[str, Any]) -> None:
    class Odd(BatchSampler):
        pass

    if "batch_sampler" in options:
        options = {**options, "batch_sampler": Odd(SequentialSampler(ROWS), 4, True)}
    refused(rf"clients\[3\]: the DataLoader's {match}", DataLoader(ROWS, **{"batch_size": 4, **options}))


def test_workers_of_a_loader() -> None:
    refused("num_workers = 2: expected 0, because", DataLoader(Yields(8), 4, num_workers=2))
    with pytest.warns(NoEffect, match="num_workers = 2 has no effect: a client reads its rows itself"):
        take(DataLoader(ROWS, 4, num_workers=2))


def test_batches_of_a_loader_are_those_of_the_run() -> None:
    drop, keep = BatchSchedule(4), BatchSchedule(4, last_batch="keep")
    for data in (ROWS, Yields(8)):
        expect_batches(made(DataLoader(data, 4, drop_last=True)), drop)
        expect_batches(made(DataLoader(data, 4)), keep)
        with pytest.raises(cl.ContractError, match=r"the DataLoader's batch_size = 2: expected 4, the run's"):
            expect_batches(made(DataLoader(data, 2)), keep)
        with pytest.raises(cl.ContractError, match=r"drop_last = False: expected True, as last_batch = 'drop'"):
            expect_batches(made(DataLoader(data, 4)), drop)
    model, pair = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 8)), ROWS.tensors
    with pytest.raises(cl.ContractError, match=r"clients\[1\]: the DataLoader's batch_size = 2: expected 4"):
        cl.train(model, [pair, DataLoader(ROWS, 2)], batch_size=4)
    with pytest.raises(cl.ContractError, match=r"test: the DataLoader's drop_last = True: expected False"):
        cl.train(model, [pair], test=DataLoader(ROWS, 2, drop_last=True), batch_size=4)
    with pytest.raises(cl.ContractError, match="clients = Yields: expected a list"):
        cl.train(model, Yields(8), batch_size=4)  # type: ignore[arg-type]


def test_rows_by_name_must_be_asked_for() -> None:
    items = [{"input_ids": [1, 2], "attention_mask": [1, 1], "labels": 0}] * 3
    call = r"cl\.rows\(data, inputs=\['input_ids', 'attention_mask'\], target='labels'\)"
    refused(rf"clients\[3\]: its rows have names \(input_ids, attention_mask, labels\).*{call}", items)
    refused(r"cl\.rows\(data, inputs='image', target='label'\)", {"label": [0], "image": [1]})
    refused(r"clients\[3\]: no 'image' in its rows: expected one of input_ids", cl.rows(items, "image", "labels"))
    refused(
        r"a row is tuple: expected a dictionary, to take inputs='x' and target='y'", cl.rows([(1, 2)] * 3, "x", "y")
    )
    x, y = take(cl.rows(items, ["input_ids", "attention_mask"], "labels"))
    assert list(x) == ["input_ids", "attention_mask"] and x["input_ids"].dtype == torch.int64 and y.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("match", "arguments"),
    [
        ("inputs = None: expected a name", {"target": "y"}),
        (r"inputs = \['a', 'a'\]", {"inputs": ["a", "a"], "target": "y"}),
        ("target = None: expected a name", {"inputs": "x"}),
        ("length = -1: expected a number of rows", {"length": -1}),
    ],
)
def test_what_rows_takes(match: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(cl.ContractError, match=match):
        cl.rows([], **arguments)


def test_a_length_that_is_known_otherwise() -> None:
    refused(r"clients\[3\]: length = 5: expected None or 8, the number of rows", cl.rows(ROWS, length=5))


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as picture:
        for given in ([(picture, 0)] * 2, cl.rows([{"x": picture, "y": 0}] * 2, "x", "y")):
            refused(r"row 0 is a picture \(PngImageFile\): expected numbers; let the dataset's transform", given)
    refused(r"clients\[3\], 'label', row 1 = 'cat': expected numbers", [([1.0], 0), ([1.0], "cat")])
    ragged = [([1.0, 2.0], 0), ([1.0], 0)]
    refused(r"clients\[3\]: row 1 has shape \(1,\), row 0 \(2,\); expected rows of one shape", ragged)
    refused(r"x and y must be tensors or arrays: y = \['a', 'b'\]: expected numbers", (np.zeros((2, 1)), ["a", "b"]))


def test_arrays_that_cannot_be_written_are_copied() -> None:
    x = np.zeros((4, 2))
    x.flags.writeable = False
    assert take((x, np.arange(4)))[1].tolist() == [0, 1]


def test_a_batch_of_the_wrong_size() -> None:
    loader = DataLoader(ROWS, 4, collate_fn=lambda samples: (torch.zeros(1, 2), torch.zeros(1)))
    refused(r"clients\[3\], 'input': rows of a batch = 1: expected 2", loader)


def test_a_stream_is_known_by_its_length_and_first_rows() -> None:
    def digest(given: Any) -> str:
        return digest_of([made(given)])

    class Random(Yields):
        def __iter__(self) -> Iterator[Any]:
            return ((torch.from_numpy(np.random.rand(2)), i) for i in range(self.rows))

    assert digest(Yields(12)) == digest(Yields(12)) != digest(Yields(13))
    assert digest(Yields(12)) != digest(cl.rows(Yields(12), length=11))
    assert digest(Random(12)) == digest(Random(12)) != digest(Random(13))  # its rows say nothing
