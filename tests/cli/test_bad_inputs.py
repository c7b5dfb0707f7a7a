"""Whatever is wrong with a path or a file is one line on stderr and status 2, and nothing is written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import cutlayer as cl
from cutlayer.cli.main import main
from cutlayer.core import toml
from cutlayer.core.lock import Lock
from cutlayer.data import cache, partition_file
from cutlayer.data.own import Own
from cutlayer.errors import ContractError, CutlayerError, StoreError
from cutlayer.experiment import config as text
from tests.forks import forked

RUN = "run --train-rows 480 --rounds 1 --local-epochs 1 --quiet --model mlp"
DEEP = 100_000  # brackets


def npz(path: Path) -> None:
    np.savez(path, x=np.zeros((4, 3), dtype=np.float32), y=[0, 1, 0, 1])


def loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


def twice(path: Path) -> None:
    rows = [pa.array([0.5, 1.5]), pa.array([1.5, 2.5]), pa.array([0, 1])]
    pyarrow.parquet.write_table(pa.Table.from_arrays(rows, names=["x", "x", "y"]), path)


def leaf(folder: Path, content: bytes) -> None:
    (folder / "femnist" / "train").mkdir(parents=True)
    (folder / "femnist" / "train" / "a.json").write_bytes(content)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of each kind of trouble in it."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    npz(tmp_path / "good.npz")
    twice(tmp_path / "twice.parquet")
    for name in ("empty.npz", "empty.parquet", "empty.json", "empty.toml", "empty.safetensors", "empty.csv"):
        (tmp_path / name).touch()
    (tmp_path / "latin.toml").write_bytes('task = "d\xfcgits"'.encode("latin-1"))
    (tmp_path / "deep.toml").write_text("task = " + "[" * DEEP + "]" * DEEP)
    (tmp_path / "dotted.toml").write_text("scheme.alpha" + ".a" * 5000 + " = 1")
    (tmp_path / "tables.toml").write_text("[base" + ".a" * 5000 + "]\nb = 1")
    (tmp_path / "digits.toml").write_text("rounds = " + "9" * 5000)
    (tmp_path / "nul.toml").write_text('data = "a\\u0000b"')
    (tmp_path / "number.toml").write_text("data = 3")
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    (tmp_path / "deep.json").write_text("[" * DEEP)
    (tmp_path / "less_deep.json").write_text("[" * 900 + "]" * 900)
    (tmp_path / "deep_rows.json").write_text('{"clients": [' + "[" * 900 + "]" * 900 + "]}")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "classes" / "a").mkdir(parents=True)
    loop(tmp_path / "classes" / "a" / "x.png")
    (tmp_path / "round" / "a").mkdir(parents=True)
    (tmp_path / "round" / "a" / "again").symlink_to(tmp_path / "round")
    loop(tmp_path / "loop")
    loop(tmp_path / "loop.toml")
    loop(tmp_path / "loop.npz")
    leaf(tmp_path / "deep", b'{"users": ' + b"[" * DEEP)
    leaf(tmp_path / "blank", b"")
    leaf(tmp_path / "wrong", b"[]")
    leaf(tmp_path / "ragged", json.dumps({"users": ["a"], "num_samples": [1], "user_data": {"a": []}}).encode())
    label = "[" * 900 + "]" * 900
    held = f'{{"users": ["a"], "num_samples": [1], "user_data": {{"a": {{"x": [[0]], "y": [{label}]}}}}}}'
    leaf(tmp_path / "label", held.encode())
    (tmp_path / "femnist_file").mkdir()
    (tmp_path / "femnist_file" / "femnist").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "deep_run").mkdir()
    (tmp_path / "deep_run" / "config.toml").write_text("task = " + "[" * DEEP)
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / ".lock").touch()  # as whoever has trained there left it
    (tmp_path / "both" / "compare.toml").write_text("base = " + "[" * DEEP)
    (tmp_path / "certs" / "a").mkdir(parents=True)
    (tmp_path / "certs" / "a" / "key.pem").touch()
    return tmp_path


NUL = [
    f"{RUN} --out a?b",
    f"{RUN} --data a?b",
    f"{RUN} --data good.npz --data-test a?b",
    f"{RUN} --data-dir a?b --task cifar10",
    f"{RUN} --init a?b",
    f"{RUN} --config a?b",
    f"{RUN} --partition file --partition.path a?b",
    "compare --seeds 0 --schemes fedavg --quiet --out a?b",
    "compare --seeds 0 --schemes fedavg --quiet --config a?b",
    "resume a?b",
    "report a?b",
    "clock a?b",
    "doctor --data-dir a?b",
    "partition --png a?b",
    "partition --parts a?b",
    "partition --export a?b",
    "serve --certs a?b --quiet",
    "serve --out a?b --listen 127.0.0.1:0 --quiet",
    "join --server 127.0.0.1:1 --name a --data a?b",
    "join --server 127.0.0.1:1 --name a --data good.npz --out a?b",
    "join --server 127.0.0.1:1 --data good.npz --certs a?b",
    "certs init --folder a?b",
    "certs client x --folder a?b",
    "certs list --folder a?b",
    "certs revoke x --folder a?b",
    "list cuts --data a?b",
]
LINES = [
    *(line.replace("?", "\0") for line in NUL),
    *(line.replace("?", "\udcff") for line in NUL),
    # loops of links
    f"{RUN} --out loop",
    f"{RUN} --out loop/x",
    f"{RUN} --data loop",
    f"{RUN} --data loop.npz",
    f"{RUN} --data classes",
    f"{RUN} --data round",
    f"{RUN} --data-dir loop --task cifar10",
    f"{RUN} --config loop.toml",
    f"{RUN} --init loop",
    f"{RUN} --init loop --overwrite",
    f"{RUN} --partition file --partition.path loop",
    "compare --seeds 0 --schemes fedavg --quiet --out loop",
    "resume loop",
    "report loop",
    "partition --png loop --export out",
    "partition --parts loop --png out.png",
    "partition --export loop",
    "serve --certs loop --quiet",
    "join --server 127.0.0.1:1 --name a --data loop",
    "join --server 127.0.0.1:1 --data good.npz --certs loop",
    "certs init --folder loop",
    # what cannot be a file of its kind
    f"{RUN} --data twice.parquet",
    f"{RUN} --data empty.npz",
    f"{RUN} --data empty.parquet",
    f"{RUN} --data empty.csv",
    f"{RUN} --data folder",
    f"{RUN} --data folder.npz",
    f"{RUN} --data good.npz --data-test empty.npz",
    f"{RUN} --data good.npz --data-test folder",
    f"{RUN} --data good.npz/x",
    f"{RUN} --data {'x' * 5000}",
    f"{RUN} --out {'x' * 5000}",
    f"{RUN} --config {'x' * 5000}",
    f"{RUN} --init empty.safetensors",
    f"{RUN} --init folder",
    f"{RUN} --init good.npz",
    f"{RUN} --partition file --partition.path folder",
    f"{RUN} --partition file --partition.path empty.json",
    f"{RUN} --partition file --partition.path deep.json",
    f"{RUN} --partition file --partition.path less_deep.json",
    f"{RUN} --partition file --partition.path deep_rows.json",
    f"{RUN} --data-dir good.npz --task cifar10",
    f"{RUN} --data-dir femnist_file --task femnist",
    *(f"{RUN} --data-dir {name} --task femnist" for name in ("deep", "blank", "wrong", "ragged", "label")),
    # configs
    *(f"{RUN} --config {name}.toml" for name in ("latin", "deep", "dotted", "tables", "digits", "binary", "folder")),
    *(f"{RUN} --config {name}.toml" for name in ("nul", "number")),
    *(f"compare --seeds 0 --quiet --config {name}.toml" for name in ("latin", "deep", "tables", "digits", "folder")),
    f"{RUN} --seed " + "[" * DEEP,
    f"{RUN} --seed " + "9" * 5000,
    f"{RUN} --scheme.alpha " + "[" * 300 + "]" * 300,
    # folders of runs
    f"{RUN} --out good.npz",
    f"{RUN} --out good.npz/x",
    f"{RUN} --out folder/../classes",
    f"{RUN} --out /proc/nothing/x",
    f"{RUN} --out /sys/nothing",
    "resume good.npz",
    "resume folder",
    "resume run",
    "resume deep_run",
    "resume both",
    "report good.npz",
    "report folder",
    "report run",
    "report deep_run",
    "report both",
    "clock deep_run",
    "clock both",
    "partition --png folder",
    "partition --parts folder.npz",
    "partition --parts out.txt",
    "partition --export good.npz",
    "serve --certs certs/a --quiet",
    "join --server 127.0.0.1:1 --data good.npz --certs certs/a",
    "certs client x --folder good.npz",
    "certs list --folder good.npz",
    "certs init --folder good.npz",
    "doctor --data-dir good.npz",
]


def tree(folder: Path) -> dict[str, int]:
    """All that is there, but for the cache."""
    found = [Path(at) / name for at, folders, files in os.walk(folder) for name in (*folders, *files)]
    return {str(path): path.lstat().st_mtime_ns for path in found if "cache" not in path.relative_to(folder).parts}


def status(line: str) -> int:
    try:
        return main(line.split(" "))
    except SystemExit as end:  # how argparse ends
        return int(end.code or 0)


@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(line[:70]))
def test_it_is_one_line_and_nothing_is_written(here: Path, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    if "/sys" in line and not Path("/sys").is_dir():
        pytest.skip("no such system")
    before = tree(here)
    assert status(line) == 2
    said = capfd.readouterr().err
    assert said.startswith("cutlayer: error: ") and said.count("\n") == 1 and "Traceback" not in said
    assert tree(here) == before


REFUSED = [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EIO]
CHILD = """
import os, sys
from cutlayer.cli.main import main

number, out = int(sys.argv[1]), sys.argv[2]
opens, mkdir = os.open, os.mkdir

def refuse(real):
    def call(path, *arguments, **options):
        if os.fspath(path).startswith(out):
            raise OSError(number, os.strerror(number), path)
        return real(path, *arguments, **options)
    return call

os.mkdir = refuse(mkdir)
if os.path.isdir(out):
    os.open = refuse(opens)
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("number", REFUSED[1:4])
def test_a_folder_that_cannot_be_written(tmp_path: Path, number: int, there: bool) -> None:
    """Neither a traceback, nor anything from objects that are taken down."""
    out = tmp_path / "out"
    if there:
        out.mkdir()
    arguments = [*RUN.split(), "--out", str(out)]
    if there and number == errno.EROFS:  # as everybody starts it
        command = [sys.executable, "-c", CHILD, str(number), str(out), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        code, err = done.returncode, done.stderr
    else:
        with forked(child, number, str(out), arguments) as process:
            code, err = process.wait(), process.err
    assert code == 2 and err.count("\n") == 1, err
    assert err.startswith(f"cutlayer: error: {out}: cannot be ") and str(out) in err
    assert not there or list(out.iterdir()) == []


def child(number: int, out: str, arguments: list[str]) -> None:
    sys.argv = ["", str(number), out, *arguments]
    exec(CHILD, {})


def test_nobody_is_training_where_nothing_can_be_written() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("no such system")
    with pytest.raises(StoreError, match="/proc/self: cannot be locked"):
        Lock(Path("/proc/self"))


@pytest.fixture(params=REFUSED, ids=lambda number: errno.errorcode[number])
def unreadable(request: pytest.FixtureRequest, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files named secret, and folders of that name, cannot be read, not even by root."""

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Path, *arguments: Any, **options: Any) -> Any:
            if "secret" in str(self):
                raise OSError(request.param, os.strerror(request.param), str(self))
            return real(self, *arguments, **options)

        return call

    npz(here / "secret.npz")
    twice(here / "secret.parquet")
    for name in ("secret.toml", "secret.json", "secret.safetensors"):
        (here / name).write_text("seed = 1")
    (here / "secrets" / "a").mkdir(parents=True)
    (here / "secrets" / "a" / "x.png").touch()
    for name in ("open", "iterdir"):
        monkeypatch.setattr(Path, name, guarded(getattr(Path, name)))
    return here


def test_what_may_not_be_read(unreadable: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for line in (
        "--data secret.npz",
        "--data good.npz --data-test secret.npz",
        "--data secret.parquet --x-column y",
        "--data secrets",
        "--config secret.toml",
        "--partition file --partition.path secret.json",
    ):
        before = tree(unreadable)
        assert status(f"{RUN} {line}") == 2
        said = capfd.readouterr().err
        assert said.startswith("cutlayer: error: ") and said.count("\n") == 1 and "secret" in said
        assert tree(unreadable) == before


@pytest.mark.parametrize(
    "path", ["a\0b", "\udcff", "loop", "secret.npz", "secrets", "folder.npz", "good.npz/x", "x" * 5000], ids=ascii
)
def test_in_python_it_is_an_error_of_ours(unreadable: Path, path: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: Own(path).load(),
        lambda: Own("good.npz", path).load(),
        lambda: cl.load(path),
        lambda: cl.dataset("cifar10", Path(path)),
        lambda: toml.read(Path(path)),
        lambda: partition_file.read(Path(path)),
    ]
    if path in ("a\0b", "\udcff"):
        calls += [lambda: cl.Net(certs=Path(path)), lambda: text.parse({"init": path})]
    for call in calls:
        with pytest.raises(CutlayerError):
            call()


def test_joining_checks_its_paths() -> None:
    data = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    for given in ({"certs": "a\0b"}, {"out": "a\0b", "name": "a"}):
        with pytest.raises(ContractError, match="expected a path"):
            cl.join("127.0.0.1:1", data, model=torch.nn.Sequential(torch.nn.Linear(3, 2)), **given)  # type: ignore[arg-type]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    from cutlayer.core.files import write_aside

    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="x"):
        write_aside(tmp_path / "x", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
