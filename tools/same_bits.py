"""Does a change keep every bit? Play every scheme in every runtime, and write down what came out.

    python tools/same_bits.py record before.json      in a clone of the commit before the change
    python tools/same_bits.py record after.json       here
    python tools/same_bits.py compare before.json after.json

Every scheme in both protocols with each optimizer, every update and local rule once per scheme, three rounds each, in
five runtimes: each client by itself, stacked clients, two processes, a network of sockets, labels that stay with the
clients. A case is two digests, of the weights and of the journal without wall-clock columns, or the kind of error that
refuses it. Only the public API is used, so the tool of one commit plays another: PYTHONPATH says which.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cutlayer as cl

SCHEMES = (
    *("fedavg", "sflv1", "sflv2", "smofi", "mergesfl", "psl", "sglr", "ssl"),
    *("cyclepsl", "cyclesfl", "cyclesglr", "cyclessl"),
)
OPTIMIZERS = {
    "sgd": cl.SGD(lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nag": cl.NAG(lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": cl.Adam(lr=1e-2),
    "adamw": cl.AdamW(lr=1e-2),
}
RULES: dict[str, dict[str, Any]] = {
    "fedavgm": {"update": cl.FedAvgM(beta=0.3)},
    "slowmo": {"update": cl.SlowMo()},
    "fednag": {"update": cl.FedNAG(), "optimizer": OPTIMIZERS["nag"]},
    "fedprox": {"local": cl.FedProx(mu=0.1)},
    "fednar half": {"local": cl.FedNAR(max_norm=0.5, norm="half")},
    "fednar joint": {"local": cl.FedNAR(max_norm=0.5, norm="joint")},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "smofi adaptive": {"scheme": cl.SMoFi(adaptive=True)},
    "smofi fuse_clients": {"scheme": cl.SMoFi(fuse_clients=True)},
    "smofi hist_norm": {"scheme": cl.SMoFi(hist_norm="weights", alpha=-0.5)},
    "smofi rebias": {"scheme": cl.SMoFi(rebias_history=True), "optimizer": OPTIMIZERS["adam"]},
    "sflv1 step": {"scheme": cl.SFLV1(every="step")},
    "sflv1 round client": {"scheme": cl.SFLV1(every="round", memory="client"), "protocol": "cyclesl"},
    "sflv2 step": {"scheme": cl.SFLV2(order="step", reset="round")},
    "mergesfl lte": {"scheme": cl.MergeSFL(select="kl_greedy", scale_lr=True), "profile": "lte"},
    "cyclesfl epochs": {"scheme": cl.CycleSFL(server_epochs=2, server_batch=5, frozen_bn="no_update")},
    "smofi noise cuts": {"scheme": "smofi", "noise": 0.1, "cut": (0, 2)},
    "psl one at a time": {"scheme": "psl", "participation": 1},
}
RUNTIMES: dict[str, dict[str, Any]] = {
    "loop": {"backend": "loop", "threads": 2},
    "stacked": {"backend": "stacked", "threads": 1},
    "ranks": {"backend": "loop", "threads": 1},
    "network": {"backend": "loop", "threads": 1},
    "labels stay": {"backend": "loop", "threads": 1, "labels": "stay"},
}
SIZES = (12, 24, 9, 17)
Found = dict[str, dict[str, str]]


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and what `cl.train` takes."""
    for scheme in SCHEMES:
        for protocol in ("smofi", "cyclesl"):
            for name, optimizer in OPTIMIZERS.items():
                yield f"{scheme} {protocol} {name}", {"scheme": scheme, "protocol": protocol, "optimizer": optimizer}
        for name, rule in RULES.items():
            yield f"{scheme} {name}", {"scheme": scheme, **rule}
    yield from OPTIONS.items()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    front = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
    middle = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2))
    return nn.Sequential(front, nn.Sequential(nn.Linear(8, 8), nn.Tanh()), middle, nn.Linear(8, 3))


def data() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in SIZES]


def arguments(runtime: str, given: Mapping[str, Any]) -> dict[str, Any]:
    common = {"cut": 0, "rounds": 3, "batch_size": 4, "local_epochs": 1, "participation": 3, "seed": 7}
    return {**common, **RUNTIMES[runtime], **given}


def trained(runtime: str, given: Mapping[str, Any]) -> tuple[list[nn.Module], list[cl.Round]]:
    """Every model that came out, and the history."""
    training = arguments(runtime, given)
    if runtime == "network":
        return served(training)
    result = cl.train(network(), data(), data()[0], ranks="ordered" if runtime == "ranks" else None, **training)
    return [result.model, *result.clients], result.history


def served(training: dict[str, Any]) -> tuple[list[nn.Module], list[cl.Round]]:
    """The same over sockets."""
    fronts: dict[int, nn.Module] = {}
    threads: list[threading.Thread] = []
    with tempfile.TemporaryDirectory() as folder:

        def client(j: int, port: int) -> None:
            joined = cl.join(f"127.0.0.1:{port}", data()[j], model=network(), name=f"c{j}", out=folder, patience=60)
            if joined.front is not None:
                fronts[j] = joined.front

        def begin(service: Any) -> None:
            for j in range(len(SIZES)):
                threads.append(threading.Thread(target=client, args=(j, service.hub.port), daemon=True))
                threads[-1].start()

        net = cl.Net("127.0.0.1:0", min_clients=len(SIZES), grace=10.0)
        result = cl.serve(network(), data()[0], net=net, watch=begin, **training)
        for thread in threads:
            thread.join(60)
    return [result.model, *(fronts[j] for j in sorted(fronts))], result.history


def digests(models: list[nn.Module], history: list[cl.Round]) -> dict[str, str]:
    weights = hashlib.sha256()
    for model in models:
        for tensor in model.state_dict().values():
            weights.update(tensor.detach().contiguous().numpy().tobytes())
    aside = ("seconds", "more", "detail")  # not in the journal, or a matter of the clock
    journal = [{name: value for name, value in asdict(r).items() if name not in aside} for r in history]
    return {
        "weights": weights.hexdigest(),
        "journal": hashlib.sha256(json.dumps(journal, sort_keys=True).encode()).hexdigest(),
    }


def played(runtime: str, only: str) -> Found:
    found: Found = {}
    began, said = time.monotonic(), 0.0
    for name, given in cases():
        if only not in name:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[f"{runtime}: {name}"] = digests(*trained(runtime, given))
        except cl.CutlayerError as error:
            found[f"{runtime}: {name}"] = {"refused": type(error).__name__}
        if os.environ.get("RANK", "0") == "0" and time.monotonic() - began > said + 10:
            said = time.monotonic() - began
            print(f"{runtime}: {len(found)} cases, {said:.0f} s", file=sys.stderr, flush=True)
    return found


def in_ranks(only: str) -> Found:
    """Two processes of torch.distributed."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found.json")
        env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        command = [sys.executable, __file__, "rank", str(path), "--only", only]
        places = [{**env, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
        ranks = [subprocess.Popen(command, env=place) for place in places]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise SystemExit("a rank failed")
        found: Found = json.loads(path.read_text())
    return found


def record(path: Path, only: str, runtimes: list[str]) -> None:
    found: Found = {}
    for runtime in runtimes:
        found |= in_ranks(only) if runtime == "ranks" else played(runtime, only)
        path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} cases in {path}")


def compare(before: Found, after: Found) -> int:
    """A table by runtime; 1 if anything differs."""
    different = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    print("| runtime | cases | refused | equal | different |")
    print("|---|---|---|---|---|")
    for runtime in RUNTIMES:
        names = [name for name in before.keys() | after.keys() if name.startswith(f"{runtime}: ")]
        refused = sum("refused" in after.get(name, {}) for name in names)
        wrong = sum(name in different for name in names)
        print(f"| {runtime} | {len(names)} | {refused} | {len(names) - wrong} | {wrong} |")
    refused_names = sorted({name.split(": ", 1)[1] for name, what in after.items() if "refused" in what})
    print(f"\nRefused in one runtime or more: {', '.join(refused_names) or 'none'}")
    for name in different:
        print(f"differs: {name}")
    return int(bool(different))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare", "rank"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--runtimes", nargs="+", choices=list(RUNTIMES), default=list(RUNTIMES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "compare":
        before, after = (json.loads(path.read_text()) for path in args.files)
        return compare(before, after)
    if args.what == "rank":
        found = played("ranks", args.only)
        if os.environ["RANK"] == "0":
            args.files[0].write_text(json.dumps(found))
        torch.distributed.destroy_process_group()
        return 0
    record(args.files[0], args.only, args.runtimes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
