"""Every form in which rows can be given trains to the bits of the same rows as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

import cutlayer as cl
from cutlayer.core.randomness import rng
from cutlayer.data.source import source

B = 4
SIZES = (26, 13, 18)
Pair = tuple[Tensor, Tensor]
SETTINGS: dict[str, Any] = {"cut": 0, "rounds": 2, "batch_size": B, "local_epochs": 2, "threads": 2}


def data(n: int, seed: int = 0) -> Pair:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)


def net() -> nn.Sequential:
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


class Ordered(IterableDataset[Any]):
    """The rows in order."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(self.x, self.y.tolist(), strict=True))


class Endless(IterableDataset[Any]):
    """The rows in order, without a length."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[Any]:
        for x, y in zip(self.x, self.y, strict=True):
            yield {"in": x.numpy(), "out": int(y)}


class Drawn(Ordered):
    """The rows in an order that each pass draws, each changed at random."""

    def __iter__(self) -> Iterator[Any]:
        for i in torch.randperm(len(self.x)).tolist():
            yield self.x[i] + torch.rand(4), self.y[i]


class Table:
    """Behaves as a dataset of the library `datasets`."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.column_names = x.tolist(), y.tolist(), ["text", "in", "out"]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, which: list[int]) -> dict[str, Any]:
        assert isinstance(which, list)
        return {"text": ["?" for _ in which], "in": [self.x[i] for i in which], "out": [self.y[i] for i in which]}


class Together:
    """Fetches rows together only."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        raise NotImplementedError

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return list(zip(self.x[rows], self.y[rows], strict=True))


def halved(samples: list[Any]) -> Any:
    """A way of making batches: of inputs that were doubled."""
    return torch.stack([x for x, _ in samples]) / 2, [y for _, y in samples]


def mapped(x: Tensor, y: Tensor, folder: Path) -> tuple[Any, Any]:
    for name, array in (("x", x.double().numpy()), ("y", y.to(torch.int32).numpy())):
        np.save(folder / f"{name}-{len(x)}.npy", array)
    return tuple(np.load(folder / f"{name}-{len(x)}.npy", mmap_mode="r") for name in "xy")  # type: ignore[return-value]


def named(x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    return [{"in": a.tolist(), "out": b} for a, b in zip(x, y.tolist(), strict=True)]


ROWS: dict[str, Callable[[Tensor, Tensor, Path], Any]] = {
    "arrays": lambda x, y, _: (x.numpy(), y.numpy()),
    "an array and a tensor": lambda x, y, _: (x.numpy(), y),
    "mapped arrays": mapped,
    "mapped slices": lambda x, y, f: tuple(column[2:-1] for column in mapped(*padded(x, y), f)),
    "dictionaries": lambda x, y, _: cl.rows(named(x, y), inputs="in", target="out"),
    "columns": lambda x, y, _: cl.rows({"in": x.numpy(), "out": y, "text": "?"}, inputs="in", target="out"),
    "a table": lambda x, y, _: cl.rows(Table(x, y), inputs="in", target="out"),
    "fetched together": lambda x, y, _: Together(x, y),
    "a subset": lambda x, y, _: Subset(Together(*padded(x, y)), range(2, len(x) + 2)),  # type: ignore[arg-type]
    "two in one": lambda x, y, _: ConcatDataset([TensorDataset(x[:7], y[:7]), TensorDataset(x[7:], y[7:])]),
}
STREAMS: dict[str, Callable[[Tensor, Tensor, bool], Any]] = {
    "iterable": lambda x, y, drop: Ordered(x, y),
    "iterable of dictionaries": lambda x, y, drop: cl.rows(Endless(x, y), inputs="in", target="out", length=len(x)),
    "loader of an iterable": lambda x, y, drop: DataLoader(Ordered(x, y), B, drop_last=drop),
    "loader": lambda x, y, drop: DataLoader(TensorDataset(x, y), B, drop_last=drop),
    "loader with collate_fn": lambda x, y, drop: DataLoader(Ordered(x * 2, y), B, drop_last=drop, collate_fn=halved),
    "indexed with collate_fn": lambda x, y, drop: DataLoader(
        TensorDataset(x * 2, y), B, drop_last=drop, collate_fn=halved
    ),
}


def padded(x: Tensor, y: Tensor) -> Pair:
    """The rows with two more before them and one after."""
    return torch.cat([x[:2] + 9, x, x[:1] - 9]), torch.cat([y[:2], y, y[:1]])


def same(a: cl.Result, b: cl.Result) -> bool:
    weights = zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in weights) and figures(a) == figures(b)


def figures(result: cl.Result) -> list[Any]:
    return [(r.loss, r.accuracy, r.train_loss, r.steps, r.samples) for r in result.history]


PAIRS = [data(SIZES[k % 3], k) for k in range(len(ROWS))]
ONWARD: dict[str, Any] = {"scheme": "psl", "protocol": "cyclesl", "local_steps": 4, "rounds": 4}


@pytest.mark.parametrize("form", ROWS)
def test_rows_are_those_of_the_tensors(form: str, tmp_path: Path) -> None:
    pair, rows = data(26), np.array([25, 3, 3, 0])
    for dtype in (torch.float32, torch.float64):
        found = [source(given, dtype, "x") for given in (ROWS[form](*pair, tmp_path), pair)]
        assert len(found[0]) == len(found[1]) == 26
        for one, other in zip(*(each.take(rows, torch.device("cpu")) for each in found), strict=True):
            assert torch.equal(one, other) and one.dtype == other.dtype  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize("more", [{"backend": "loop"}, {"backend": "stacked", "last_batch": "keep"}], ids=str)
def test_rows_in_any_order(more: dict[str, Any], tmp_path: Path) -> None:
    given = [form(*pair, tmp_path) for form, pair in zip(ROWS.values(), PAIRS, strict=True)]
    plain = cl.train(net(), PAIRS, test=list(PAIRS), **SETTINGS, **more)
    assert same(cl.train(net(), given, test=given, **SETTINGS, **more), plain)


@pytest.mark.parametrize(
    "more",
    [
        {"backend": "loop"},
        {"backend": "stacked", "last_batch": "keep"},
        {"local_steps": 5, "scheme": "sflv2"},
        ONWARD,
    ],
    ids=["loop", "stacked", "steps", "onward"],
)
def test_rows_in_their_order(more: dict[str, Any]) -> None:
    pairs, drop = PAIRS[: len(STREAMS) + 1], "last_batch" not in more
    settings = {**SETTINGS, "shuffle": False, **more}
    given = [*(form(*pair, drop) for form, pair in zip(STREAMS.values(), pairs, strict=False)), pairs[-1]]
    plain = cl.train(net(), pairs, test=list(pairs), **settings)
    test = [*(form(*pair, False) for form, pair in zip(STREAMS.values(), pairs, strict=False)), pairs[-1]]
    assert same(cl.train(net(), given, test=test, **settings), plain)


@pytest.mark.parametrize("form", ["iterable", "loader", "loader with collate_fn"])
def test_one_test_for_all(form: str) -> None:
    """Its batches are read in order, whatever thread computes with them."""
    test, settings = data(1700), {**SETTINGS, "rounds": 1, "threads": 3}
    plain = cl.train(net(), PAIRS[:1], test=test, **settings)
    assert same(cl.train(net(), PAIRS[:1], test=STREAMS[form](*test, False), **settings), plain)


def test_where_others_are_shuffled_an_iterable_is_not() -> None:
    one, other = data(24, 1), data(24, 2)
    ordered = cl.train(net(), [Ordered(*one), other], **SETTINGS)
    assert same(cl.train(net(), [DataLoader(TensorDataset(*one), B, drop_last=True), other], **SETTINGS), ordered)
    assert not same(cl.train(net(), [one, other], **SETTINGS), ordered)
    assert not same(cl.train(net(), [one, other], shuffle=False, **SETTINGS), ordered)


def test_labels_of_an_iterable_are_counted() -> None:
    """MergeSFL reads all labels to choose clients."""
    scheme = cl.MergeSFL(select="kl_greedy")
    settings = {**SETTINGS, "shuffle": False, "scheme": scheme, "participation": 2, "rounds": 2}
    pairs = PAIRS[:4]
    assert same(cl.train(net(), [Ordered(*p) for p in pairs], **settings), cl.train(net(), pairs, **settings))


def test_an_interrupted_run_goes_on_at_its_place(tmp_path: Path) -> None:
    """In the midst of a pass, also of one that is drawn at random."""
    pairs = [data(n, n) for n in SIZES]
    settings = {**SETTINGS, "protocol": "cyclesl", "local_steps": 4, "rounds": 3, "test": data(9)}

    def clients() -> list[Any]:
        return [Ordered(*pairs[0]), Drawn(*pairs[1]), pairs[2]]

    whole = cl.train(net(), clients(), **settings)
    for _ in range(2):
        run = cl.rounds(net(), clients(), out=tmp_path / "x", **settings)
        next(run)
        run.close()
    assert same(cl.train(net(), clients(), out=tmp_path / "x", **settings), whole)
    other = [*clients()[:2], data(18, 5)]
    with pytest.raises(cl.StoreError, match="have changed"):
        cl.train(net(), other, out=tmp_path / "x", **settings)
    with pytest.raises(cl.StoreError, match="have changed"):
        cl.train(net(), [Ordered(*data(26, 5)), *clients()[1:]], out=tmp_path / "x", **settings)


def test_passes_have_addresses() -> None:
    """The same pass draws the same, from wherever it is read; another draws anew."""
    cpu, rows = torch.device("cpu"), Drawn(*data(12))

    def taken(*places: int, number: int = 0, fresh: Any = None) -> Tensor:
        stream = fresh or source(rows, torch.float32, "x")
        return torch.cat([stream.take(np.arange(k, k + 4), cpu, lambda: rng(0, 0, number, "pass"))[0] for k in places])

    before = torch.random.get_rng_state()
    whole = taken(0, 4, 8)
    assert torch.equal(taken(8), whole[8:]) and torch.equal(taken(4, 0), whole[[4, 5, 6, 7, 0, 1, 2, 3]])
    assert not torch.equal(taken(0, number=1), whole[:4])
    one = source(rows, torch.float32, "x")
    one.take(np.arange(4), cpu)  # a pass without an address
    assert torch.equal(taken(4, fresh=one), whole[4:8])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_several_inputs_by_name() -> None:
    class Sum(nn.Module):
        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return x["a"] + x["b"]

    torch.default_generator.manual_seed(0)
    model = nn.Sequential(Sum(), nn.Linear(4, 8), nn.Linear(8, 3))
    x, y = data(26)
    given = [{"a": 2 * row, "b": -row, "text": "?", "labels": label} for row, label in zip(x, y, strict=True)]
    plain = cl.train(model, [({"a": 2 * x, "b": -x}, y)], **{**SETTINGS, "cut": 1})
    named = cl.rows(given, inputs=["a", "b"], target="labels")
    assert same(cl.train(model, [named], **{**SETTINGS, "cut": 1}), plain)


def test_a_frame_of_pandas_like_columns() -> None:
    """What a frame has to have; `extras` tests the real one."""

    class Frame:
        def __init__(self, columns: dict[str, Any]) -> None:
            self.held, self.columns = columns, list(columns)

        def __getitem__(self, name: str | list[str]) -> Any:
            return (
                Frame({one: self.held[one] for one in name}) if isinstance(name, list) else Frame({"": self.held[name]})
            )

        def to_numpy(self) -> Any:
            found = np.stack(list(self.held.values()), axis=1)
            return found[:, 0] if self.columns == [""] else found

    x, y = data(26)
    frame = Frame({**{f"x{i}": x[:, i].numpy() for i in range(4)}, "y": y.numpy()})
    given = cl.rows(frame, inputs=[f"x{i}" for i in range(4)], target="y")
    assert same(cl.train(net(), [given], **SETTINGS), cl.train(net(), [(x, y)], **SETTINGS))
    with pytest.raises(cl.ContractError, match=r"clients\[0\]: its rows have names \(x0, .*target='y'\)"):
        cl.train(net(), [frame], **SETTINGS)
    with pytest.raises(cl.ContractError, match=r"clients\[0\]: no 'z' in its rows: expected one of x0, x1"):
        cl.train(net(), [cl.rows(frame, inputs=["z"], target="y")], **SETTINGS)


@pytest.mark.extras
def test_a_frame_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed (make test-extras has it)")
    x, y = data(26)
    frame = pandas.DataFrame(x.numpy(), columns=list("abcd")).assign(y=y.numpy(), text="?")
    plain = cl.train(net(), [(x, y)], **SETTINGS)
    assert same(cl.train(net(), [cl.rows(frame, inputs=list("abcd"), target="y")], **SETTINGS), plain)
    with pytest.raises(cl.ContractError, match="expected columns of numbers"):
        cl.train(net(), [cl.rows(frame, inputs=["a", "text"], target="y")], **SETTINGS)
    holes = frame.assign(a=frame.a.where(frame.index != 5))
    with pytest.raises(cl.ContractError, match="row 5 holds NaN"):
        cl.train(net(), [cl.rows(holes, inputs=list("abcd"), target="y")], **SETTINGS)


@pytest.mark.extras
def test_datasets_of_the_library() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed (make test-extras has it)")
    x, y = data(26)
    columns = pyarrow.table({"in": x.tolist(), "out": y.tolist(), "text": ["?"] * 26})
    table = datasets.Dataset(datasets.table.InMemoryTable(columns), fingerprint="rows")
    plain = cl.train(net(), [(x, y)], **SETTINGS)
    for given in (table, table.with_format("torch"), table.with_format("numpy")):
        assert same(cl.train(net(), [cl.rows(given, inputs="in", target="out")], **SETTINGS), plain)
    with pytest.raises(cl.ContractError, match=r"its rows have names \(in, out, text\)"):
        cl.train(net(), [table], **SETTINGS)
    stream = cl.rows(table.to_iterable_dataset(), inputs="in", target="out", length=26)
    ordered = cl.train(net(), [(x, y)], shuffle=False, **SETTINGS)
    assert same(cl.train(net(), [stream], shuffle=False, **SETTINGS), ordered)
