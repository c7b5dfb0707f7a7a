"""What `cutlayer join --data` takes, held against what the server says of its rows and its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from torch import nn

from cutlayer.data import cache
from cutlayer.data.tasks import SOURCES
from cutlayer.data.transform import KINDS, Codes, Pixels, Transform, Values, decode, encode
from cutlayer.errors import ContractError, CutlayerError, StoreError
from cutlayer.experiment import server_directory
from cutlayer.experiment.client_data import ClientData
from cutlayer.experiment.config import parse
from cutlayer.experiment.model_files import build_model
from cutlayer.network.client.loop import Joined
from cutlayer.network.protocol.handshake import Welcome, read, words
from cutlayer.network.protocol.settings import Limits, Net
from tests.data.read.test_cifar import NAMES as CIFAR
from tests.data.read.test_cifar import write_python10
from tests.data.read.test_idx import idx
from tests.data.test_own import picture
from tests.experiment.test_server_directory import NET, SMALL, THREADS, arrays, attend

pytestmark = pytest.mark.filterwarnings(THREADS)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path_factory.mktemp("cache")))


def welcome(**values: Any) -> Welcome:
    """What a server with this config says, as it arrives."""
    said: Welcome = server_directory._service(parse(values), Net("127.0.0.1:0"), None, "a1").welcome
    there: Welcome = read(msgspec.msgpack.decode(msgspec.msgpack.encode(words(said))), Welcome)
    return there


def but(said: Welcome, **values: Any) -> Welcome:
    return msgspec.structs.replace(said, **values)


def guest(path: Path, **more: Any) -> ClientData:
    return ClientData(path, Limits(), **more)


def taken(one: ClientData, said: Welcome) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows as the model sees them, with their labels checked as joining does."""
    rows = one.rows(said)
    assert said.classes is not None
    rows.expect_classes(said.classes)
    x, y = rows.take(np.arange(len(rows)), CPU)
    assert isinstance(x, torch.Tensor) and tuple(x.shape[1:]) == said.shape
    return x, y


@pytest.fixture
def numbers(tmp_path: Path) -> Welcome:
    """A server of rows of five floats and three classes."""
    return welcome(**SMALL, data=str(arrays(tmp_path / "server.npz", 12, 0)))


@pytest.fixture
def pictures(tmp_path: Path) -> Welcome:
    """A server of images of 16x16 pixels, whose classes have names."""
    for c, name in enumerate(("cat", "dog", "emu")):
        for k in range(2):
            picture(tmp_path / "server" / name / f"{k}.png", 10 * c + k)
    return welcome(data=str(tmp_path / "server"), model={"name": "resnet", "width": 4})


def test_arrays_in_an_npz_file(tmp_path: Path, numbers: Welcome) -> None:
    path = arrays(tmp_path / "mine.npz", 7, 1)
    x, y = taken(guest(path), numbers)
    held = np.load(path)
    assert np.array_equal(x, held["x"]) and y.tolist() == held["y"].tolist() and x.dtype == torch.float32
    np.savez(tmp_path / "other.npz", features=held["x"], outcome=held["y"])
    assert taken(guest(tmp_path / "other.npz", x="features", y="outcome"), numbers)[0].equal(x)
    with pytest.raises(ContractError, match=r"other\.npz: arrays \['features', 'outcome'\], expected 'x' among them"):
        guest(tmp_path / "other.npz").rows(numbers)


def test_columns_of_a_parquet_file(tmp_path: Path, numbers: Welcome) -> None:
    held = np.load(arrays(tmp_path / "mine.npz", 7, 1))
    columns = {name: held["x"][:, i] for i, name in enumerate("abcde")}
    pyarrow.parquet.write_table(pa.table({"x": list(held["x"]), "y": held["y"], **columns}), tmp_path / "mine.parquet")
    for names in ("x", "a,b,c,d,e"):
        x, y = taken(guest(tmp_path / "mine.parquet", x=names), numbers)
        assert np.array_equal(x, held["x"]) and y.tolist() == held["y"].tolist()
    with pytest.raises(ContractError, match=r"data: rows of shape = \(2,\): expected the server's, \(5,\)"):
        guest(tmp_path / "mine.parquet", x="a,b").rows(numbers)


def test_images_by_class_are_numbered_as_at_the_server(tmp_path: Path, pictures: Welcome) -> None:
    """A client that lacks classes, and whose images are of another size."""
    assert pictures.class_names == ("cat", "dog", "emu") and pictures.shape == (3, 16, 16)
    for k, name in enumerate(("emu", "dog", "emu")):
        picture(tmp_path / "mine" / name / f"{k}.png", k, (20, 24))
    x, y = taken(guest(tmp_path / "mine"), pictures)
    assert y.tolist() == [1, 2, 2] and x.dtype == torch.float32 and 0 <= float(x.min()) < float(x.max()) <= 1
    whole = taken(guest(tmp_path / "server"), pictures)[1]
    assert whole.tolist() == [0, 0, 1, 1, 2, 2]
    picture(tmp_path / "mine" / "gnu" / "9.png", 9)
    with pytest.raises(ContractError, match="data: class = 'gnu': expected one of the server's cat, dog, emu"):
        guest(tmp_path / "mine").rows(pictures)


def test_classes_by_name_in_a_file(tmp_path: Path, pictures: Welcome, numbers: Welcome) -> None:
    pixels = np.zeros((3, 3, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "named.npz", x=pixels, y=np.array(["emu", "cat", "emu"]))
    assert taken(guest(tmp_path / "named.npz"), pictures)[1].tolist() == [2, 0, 2]
    np.savez(tmp_path / "numbers.npz", x=pixels, y=np.array([2, 0, 2]))
    assert taken(guest(tmp_path / "numbers.npz"), pictures)[1].tolist() == [2, 0, 2]
    for names, said in (
        (["a", "b", "c"], None),
        (["a", "b", "b"], "data: classes = '2 by name': expected all 3, since"),
    ):
        np.savez(tmp_path / f"{len(set(names))}.npz", x=np.zeros((3, 5)), y=np.array(names))
        one = guest(tmp_path / f"{len(set(names))}.npz")
        if said is None:
            assert taken(one, numbers)[1].tolist() == [0, 1, 2]
        else:
            with pytest.raises(ContractError, match=said):
                one.rows(numbers)


def mnist(folder: Path, seed: int, rows: int = 12) -> np.ndarray:
    """IDX files of small images; what is in the training ones."""
    folder.mkdir(parents=True)
    rng, held = np.random.default_rng(seed), []
    for side in ("train", "t10k"):
        images = rng.integers(0, 256, (rows, 8, 8), dtype=np.uint8)
        (folder / f"{side}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{side}-labels-idx1-ubyte").write_bytes(idx(np.arange(rows, dtype=np.uint8) % 10))
        held.append(images)
    return held[0]


def test_a_folder_as_the_task_is_published(tmp_path: Path) -> None:
    """And the server's normalisation, not one from the client's rows."""
    mnist(tmp_path / "server" / "mnist", 0)
    said = welcome(task="mnist", data_dir=str(tmp_path / "server"))
    assert said.task == "mnist" and said.seen is not None and said.seen["kind"] == "pixels"
    mine = mnist(tmp_path / "mine", 1)
    x, y = taken(guest(tmp_path / "mine"), said)
    expected = (torch.from_numpy(mine)[:, None].float() / 255 - 0.1307) / 0.3081
    assert torch.allclose(x, expected, atol=1e-6) and y.tolist() == [n % 10 for n in range(12)]
    np.savez(tmp_path / "mine.npz", x=mine, y=np.arange(12) % 10)
    assert taken(guest(tmp_path / "mine.npz"), said)[0].equal(x), "the same rows in a form of one's own"
    (tmp_path / "mine" / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(StoreError, match=r"task 'mnist': .*no train-labels file"):
        guest(tmp_path / "mine").rows(said)


@pytest.mark.parametrize("augment", [False, True])
def test_the_servers_augmentation(tmp_path: Path, augment: bool) -> None:
    write_python10(tmp_path / "server" / "cifar10")
    said = welcome(task="cifar10", data_dir=str(tmp_path / "server"), augment=augment, model={"name": "resnet"})
    task = SOURCES["cifar10"]
    rows = guest(tmp_path / "server" / "cifar10").rows(said)
    assert rows.transform == (task.changed if augment else task.plain)  # type: ignore[attr-defined]
    assert said.class_names == tuple(CIFAR)
    index, draws = np.arange(4), []

    def draw() -> np.random.Generator:
        draws.append(1)
        return np.random.default_rng(0)

    plain, changed = rows.take(index, CPU)[0], rows.take(index, CPU, draw)[0]
    assert isinstance(plain, torch.Tensor) and isinstance(changed, torch.Tensor)
    assert plain.equal(changed) is not augment and len(draws) == augment


def save(**given: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **{"x": np.zeros((4, 5)), "y": np.arange(4) % 3, **given})


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (save(x=np.zeros((4, 6))), r"data: rows of shape = \(6,\): expected the server's, \(5,\)"),
        (save(x=np.zeros((4, 5, 1))), r"data: rows of shape = \(5, 1\): expected the server's, \(5,\)"),
        (save(x=np.zeros((4, 5), int)), r"data: rows of = 'uint8 \(codes\)': expected features as at the server"),
        (save(y=np.array([0, 1, 2, 3])), r"data: labels = '0\.\.3': expected 0\.\.2, the model's 3 outputs"),
        (save(y=np.array([0, 1, -1, 2])), r"mine\.npz"),
        (save(x=np.zeros((0, 5)), y=np.zeros(0, int)), r"mine\.npz: x: shape = \(0, 5\): expected \(rows, "),
        (save(x=np.full((4, 5), np.nan)), r"mine\.npz: x, row 0: NaN or infinity, expected finite numbers"),
        (save(y=np.zeros(3, int)), r"mine\.npz: rows of y = 3: expected 4 as of x"),
        (save(y=np.zeros(4)), r"mine\.npz: y: type = 'float64'"),
        (lambda path: path.write_bytes(b"no zip"), r"mine\.npz: not a readable NPZ file"),
    ],
    ids=["shape", "dimensions", "dtype", "classes", "negative", "none", "nan", "lengths", "labels", "damaged"],
)
def test_rows_that_do_not_fit(tmp_path: Path, numbers: Welcome, write: Callable[[Path], None], said: str) -> None:
    write(tmp_path / "mine.npz")
    with pytest.raises(CutlayerError, match=said):
        taken(guest(tmp_path / "mine.npz"), numbers)


def test_paths_that_do_not_fit(tmp_path: Path, numbers: Welcome, pictures: Welcome) -> None:
    with pytest.raises(StoreError, match=r"data = '.*nothing': no such folder or file"):
        guest(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    for said in (numbers, pictures):
        with pytest.raises(
            StoreError, match=r"data = '.*empty': nothing to read there; expected an \.npz or \.parquet"
        ):
            guest(tmp_path / "empty").rows(said)
    np.savez(tmp_path / "floats.npz", x=np.zeros((4, 3, 16, 16)), y=np.zeros(4, int))
    with pytest.raises(
        ContractError, match=r"data: rows of = 'float32 \(features\)': expected pixels as at the server"
    ):
        guest(tmp_path / "floats.npz").rows(pictures)


@pytest.mark.parametrize(
    "transform",
    [Pixels(), Pixels((0.1, 0.2, 0.3), (1.0, 2.0, 3.0), 4, True), Codes(), Values(), Values(-54.7, 21.3)]
    + [t for task in SOURCES.values() for t in (task.plain, task.changed) if t is not None],
    ids=str,
)
def test_transforms_travel_as_words(transform: Transform) -> None:
    said = encode(transform)
    assert said is not None and said["kind"] in KINDS
    assert decode(msgspec.msgpack.decode(msgspec.msgpack.encode(said))) == transform


def test_a_transform_of_ones_own_does_not_travel() -> None:
    class Mine(Values):
        """Not one that the other side knows."""

    assert encode(Mine()) is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "unknown kind of rows 'None': valid: codes, features, pixels"),
        ({"kind": "pixel"}, "unknown kind of rows 'pixel': did you mean 'pixels'?"),
        ({"kind": "os.system"}, "unknown kind of rows 'os.system'"),
        ({"kind": "pixels", "__class__": "x"}, "unknown number of pixels '__class__'"),
        ({"kind": "features", "random": True}, "unknown number of features 'random'"),
        ({"kind": "codes", "mean": 1.0}, "unknown number of codes 'mean'"),
        ({"kind": "pixels", "mean": "x"}, "rows seen as"),
        ({"kind": "pixels", "flip": "maybe"}, "rows seen as"),
        ({"kind": "pixels", "pad": 10**9}, "rows seen with pad = 1000000000: expected 0 to 64"),
        ({"kind": "pixels", "pad": -1}, "rows seen with pad = -1: expected 0 to 64"),
        ({"kind": "pixels", "std": [0.0]}, "expected finite numbers, std above 0"),
        ({"kind": "pixels", "mean": [0.0, 0.0]}, "expected finite numbers, std above 0"),
        ({"kind": "features", "mean": float("nan")}, "expected finite numbers, std above 0"),
        ({"kind": "features", "std": float("inf")}, "expected finite numbers, std above 0"),
        ({"kind": "features", "std": -1.0}, "expected finite numbers, std above 0"),
    ],
)
def test_hostile_words_are_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ContractError) as error:
        decode(said)
    assert why in str(error.value)


def test_a_mean_for_other_channels_is_refused(tmp_path: Path, pictures: Welcome) -> None:
    for n in (2, 4, 1000):
        said = but(pictures, seen={"kind": "pixels", "mean": [0.5] * n, "std": [1.0] * n})
        with pytest.raises(ContractError, match=f"the server's mean: numbers = {n}: expected one, or one by channel"):
            guest(tmp_path / "server").rows(said)


def test_a_model_that_is_too_large_is_refused_at_once(
    tmp_path: Path, numbers: Welcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is memory for its weights: these would take 400 GB, or forever to build."""
    path, built = arrays(tmp_path / "mine.npz", 7, 1), []

    def build(*arguments: Any) -> nn.Module:
        model = build_model(*arguments)
        built.append({p.device.type for p in model.parameters()})
        return model

    monkeypatch.setattr("cutlayer.experiment.client_data.build_model", build)
    small, enough = (ClientData(path, Limits(parameters=n)) for n in (218, 219))
    with pytest.raises(ContractError, match="the server's model = '219 parameters': expected at most 218, as --limit-"):
        small.model(numbers)
    assert built == [{"meta"}]
    assert sum(p.numel() for p in enough.model(numbers).parameters()) == 219 and built[1:] == [{"meta"}, {"cpu"}]
    built.clear()
    for spec, said in (
        (
            {"name": "mlp", "width": 10**5, "depth": 12},
            r"'1\d\d,\d{3},\d{3},\d{3} parameters': expected at most 1,000,000",
        ),
        ({"name": "mlp", "depth": 10**9}, "the server's model: depth = 1000000000: expected at most 1000"),
        ({"name": "mlp", "width": 10**30}, "it cannot be built for inputs of shape"),
    ):
        with pytest.raises(ContractError, match=said):
            guest(path).model(but(numbers, model=spec))
    assert built == [{"meta"}]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"name": "mpl"}, "unknown model 'mpl': did you mean 'mlp'\\? valid: "),
        ({"name": "mlp", "widht": 3}, "unknown parameter of model 'mlp' 'widht': did you mean 'width'\\?"),
        ({"name": "mlp", "width": "many"}, "the server's model = .*width = 'many': input should be a valid integer"),
        ({"name": "mlp", "width": -1}, "width = -1: expected a whole number, at least 1"),
        ({"name": ["mlp"]}, "expected a name, or a table with a name"),
        ({}, "parameters without a name"),
        (None, r"the server trains a model of its own: expected the same one here, with cl\.join\(model=\)"),
    ],
)
def test_models_that_cannot_be(tmp_path: Path, numbers: Welcome, model: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        guest(arrays(tmp_path / "mine.npz", 7, 1)).model(but(numbers, model=model))
    with pytest.raises(ContractError, match="the server sends no number of classes"):
        guest(tmp_path / "mine.npz").model(but(numbers, classes=None))


@pytest.mark.parametrize("name", ["steps", "rate", "batch", "parameters"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_that_cannot_be(name: str, value: float) -> None:
    with pytest.raises(ContractError, match=f"limit: {name} = .*: expected a finite number above 0"):
        Limits(**{name: value})


def test_every_form_trains_together(tmp_path: Path, pictures: Welcome) -> None:
    """A folder, a file of pixels with names and one of encoded images, with one server; what does not fit leaves."""
    del pictures
    data = {"folder": tmp_path / "server", "file": tmp_path / "file.npz", "table": tmp_path / "table.parquet"}
    pixels = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    np.savez(data["file"], x=pixels, y=np.array(["emu", "dog"] * 3))
    images = [path.read_bytes() for path in sorted((tmp_path / "server").rglob("*.png"))]
    pyarrow.parquet.write_table(pa.table({"x": images, "y": ["dog", "cat"] * 3}), data["table"])
    np.savez(tmp_path / "wrong.npz", x=pixels[:, :8], y=np.zeros(6, int))
    given = parse({**SMALL, "data": str(tmp_path / "server"), "model": {"name": "resnet", "width": 4}, "rounds": 1})
    started = server_directory.start(given, NET, tmp_path / "run")
    run = attend(*started, {**data, "wrong": tmp_path / "wrong.npz"}, tmp_path / "joined")
    assert all(isinstance(run.ended[name], Joined) for name in data), run.ended
    assert [record.participants for record in run.experiment.history] == [3] and run.summary["best_accuracy"] is None
    refused = run.ended["wrong"]
    assert isinstance(refused, ContractError) and "rows of shape = (3, 8, 16): expected the server's" in str(refused)
