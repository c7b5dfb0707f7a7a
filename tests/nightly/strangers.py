"""Thousands of silent and a hundred slow connections at a server that may open 1,024 files: the same bits.

`python -m tests.nightly.strangers` says what that costs in time.
"""

from __future__ import annotations

import resource
import socket
import tempfile
import time
from pathlib import Path

import cutlayer as cl
from cutlayer.sealed import digest
from tests.forks import forked
from tests.net.play import network, rows
from tests.net.test_connections import BASE, server

LIMIT, SILENT, SLOW = 1024, 5000, 100


def play(seed: int, folder: Path) -> None:
    flooded(folder, SILENT, SLOW)


def flooded(folder: Path, silent: int, slow: int, last: int = 3) -> float:
    """A run with so many strangers; the seconds of its rounds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < silent + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (silent + 500, hard))
    training = {**BASE, "rounds": last}
    whole = cl.train(network(), rows(), test=rows()[0], backend="loop", **training)
    with forked(server, str(folder), LIMIT, last) as process:
        while not (folder / "port").exists():
            assert not process.ended, process.err
            time.sleep(0.01)
        port, there = int((folder / "port").read_text()), []
        for _ in range(silent):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            there.append(one)
        (folder / "there").touch()
        while not process.ended:
            for each in there[:slow]:
                try:
                    each.send(b"\x16")
                except OSError:
                    continue
            time.sleep(0.05)
        assert process.wait() == 0, process.err
        for one in there:
            one.close()
        bits, seconds = process.out.split()
        assert bits == digest(whole.model.state_dict())
        return float(seconds)


def compared() -> None:
    """With and without them, one after the other, five times."""
    for _ in range(5):
        found = []
        for silent, slow in ((0, 0), (SILENT, SLOW)):
            with tempfile.TemporaryDirectory() as folder:
                found.append(flooded(Path(folder), silent, slow, last=200))
        print(f"200 rounds: {found[0]:.2f} s alone, {found[1]:.2f} s with {SILENT} silent and {SLOW} slow connections")


if __name__ == "__main__":
    compared()
