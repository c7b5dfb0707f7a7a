"""From a config to a run directory: build the run, write every round down, come back after a crash.

The run is a stream of rounds; journal and checkpoints consume it here and pass it on.
"""

from __future__ import annotations

import functools
import json
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from cutlayer import config as text
from cutlayer import journal, store
from cutlayer._version import __version__
from cutlayer.config import Config
from cutlayer.cut import halves
from cutlayer.data.partition import holdout
from cutlayer.data.tasks import Dataset, load_task
from cutlayer.devices import lognormal
from cutlayer.errors import ContractError, Diverged, StoreError
from cutlayer.files import write_aside
from cutlayer.models import MODELS
from cutlayer.records import Round
from cutlayer.rng import EVERYBODY, address, callers_randomness, rng
from cutlayer.train import Run, rounds

CLIENTS = 30
load_once = functools.lru_cache(maxsize=2)(load_task)


def build_model(spec: dict[str, Any], shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A model by name, its weights drawn at the seed's address."""
    arguments = {key: value for key, value in spec.items() if key != "name"}
    with callers_randomness():
        torch.default_generator.manual_seed(address(seed, 0, EVERYBODY, "weights"))
        try:
            model: nn.Module = MODELS[spec["name"]].make(shape, classes, **arguments)
        except (RuntimeError, ValueError, TypeError, ZeroDivisionError) as error:
            raise ContractError(f"model = {spec}: it cannot be built for inputs of shape {shape}: {error}") from error
    return model


def assemble(config: Config, warm: bool = True) -> Run:
    """The run a config describes: data, partition, model and all. Nothing is written; `warm`: begin from `init`."""
    data = load_once(config.task, Path(config.data_dir) if config.data_dir else None, config.train_rows, config.seed)
    clients, test = populate(config, data)
    model = build_model(config.model, tuple(data.x.shape[1:]), data.classes, config.seed)
    if config.init is not None and warm:
        _warm_start(model, Path(config.init))
    return rounds(
        model,
        clients,
        test=test,
        cut=config.cut,
        scheme=config.part("scheme"),
        local=config.part("local"),
        update=config.part("update"),
        optimizer=config.part("optimizer"),
        server_optimizer=config.part("server_optimizer"),
        rounds=config.rounds,
        participation=config.participation,
        batch_size=config.batch_size,
        local_epochs=config.local_epochs,
        local_steps=config.local_steps,
        protocol=config.protocol,
        last_batch=config.last_batch,
        small_client=config.small_client,
        noise=config.noise,
        devices=lognormal(len(clients), config.seed) if config.devices == "lognormal" else None,
        kept_memory=config.kept_memory,
        evaluate_every=config.evaluate_every,
        seed=config.seed,
        device=config.device,
        target=config.target,
    )


Rows = tuple[Tensor, Tensor]


def populate(config: Config, data: Dataset) -> tuple[list[Rows], Rows | list[Rows]]:
    """Who holds which rows, and what is tested on: the task's test rows, or (cyclesl) a share of each client's own.

    With shares of their own, clients divide training and test rows together.
    """
    x, y = data.x, data.y
    own = config.protocol == "cyclesl" or not len(data.y_test)
    if own:
        x, y = torch.cat([data.x, data.x_test]), torch.cat([data.y, data.y_test])
    divide, draw = config.part("partition"), rng(config.seed, 0, EVERYBODY, "partition")
    clients = config.clients if config.clients or config.partition["name"] == "natural" else CLIENTS
    parts = divide(y.numpy(), clients, draw, data.owners)
    if not own:
        return [(x[rows], y[rows]) for rows in parts], (data.x_test, data.y_test)
    pairs = [holdout(rows, config.holdout, rng(config.seed, 0, j, "holdout")) for j, rows in enumerate(parts)]
    return [(x[train], y[train]) for train, _ in pairs], [(x[test], y[test]) for _, test in pairs]


class Experiment:
    """A run with a directory: iterate it to train."""

    def __init__(self, config: Config, out: Path, run: Run, history: list[Round], lock: store.Lock) -> None:
        self.config, self.out, self.run, self.history, self._lock = config, out, run, history, lock

    @classmethod
    def start(cls, config: Config, out: Path, overwrite: bool = False) -> Experiment:
        """A new run. Whatever is wrong with the config or the data is said before anything is written."""
        if config.init and overwrite and out.resolve() in Path(config.init).resolve().parents:
            raise ContractError(f"init = {config.init!r}: it lies in the folder that --overwrite empties")
        run = assemble(config)
        store.claim(out, "config.toml", text.dump(config), overwrite)
        lock = store.Lock(out)
        run.setup.shelf.place(out / store.SPILL)
        store.save(out, run.state)
        return cls(config, out, run, [], lock)

    @classmethod
    def resume(cls, out: Path) -> Experiment:
        """A run that was interrupted, or is complete: from its newest whole checkpoint."""
        if not (out / "config.toml").exists():
            raise StoreError(f"{out} holds no run: no config.toml in it")
        config = text.parse(text.read(out / "config.toml"))
        lock = store.Lock(out)
        rounds_done = len(journal.read(out / "journal.jsonl"))
        run = assemble(config, warm=False)
        found = store.load(out, run.state, rounds_done)
        if found is None:
            run = assemble(config)
            if rounds_done:
                warnings.warn(f"{out}: no checkpoint of its rounds; starting again", store.LostJournal, stacklevel=2)
            store.save(out, run.state)
        run.setup.shelf.place(out / store.SPILL)
        store.forget_after(out, 0 if found is None else found.n)
        history = journal.trim(out / "journal.jsonl", 0 if found is None else found.n)
        if found is not None:
            run.resume(found, history)
        return cls(config, out, run, history, lock)

    def __iter__(self) -> Iterator[Round]:
        """The rounds still to come; each is on disk before it is handed on."""
        with self._lock:
            yield from self._rounds()

    def _rounds(self) -> Iterator[Round]:
        try:
            for record in self.run:
                journal.append(self.out / "journal.jsonl", record)
                self.history.append(record)
                if record.n % self.config.checkpoint_every == 0 or self.run.finished:
                    store.save(self.out, self.run.state)
                yield record
        except Diverged as error:
            store.save(self.out, self.run.state)  # the last good weights
            self._summarise("diverged", message=str(error))
            raise
        self._finish()

    def _finish(self) -> None:
        model = self.run.model
        lo = self.config.cut if isinstance(self.config.cut, int) else self.config.cut[0]
        front, back = halves(model, lo)
        shape = list(self._data().x.shape[1:])
        about = {"model": self.config.model, "shape": shape, "classes": self._data().classes, "cut": lo}
        for part, module in (("model", model), ("front", front), ("back", back)):
            words = {"cutlayer": json.dumps({**about, "part": part})}
            store.save_model(self.out / f"{part}.safetensors", module.state_dict(), words)
        self._save_fronts(lo, {"cutlayer": json.dumps({**about, "part": "front"})})
        self._summarise("complete", sha256=store.digest(model.state_dict()))

    def _save_fronts(self, cut: int, words: dict[str, str]) -> None:
        """The front of every client that keeps one."""
        own = [j for j in sorted(self.run.state.turns) if self.run.state.front(j) is not None]
        if own:
            (self.out / "fronts").mkdir(exist_ok=True)
        for j in own:
            front, _ = halves(self.run.personal(j), cut)
            store.save_model(self.out / "fronts" / f"client-{j}.safetensors", front.state_dict(), words)

    def _summarise(self, status: Literal["complete", "diverged"], **more: Any) -> None:
        scored = [r for r in self.history if r.accuracy is not None]
        best = max(scored, key=lambda r: r.accuracy or 0.0, default=None)
        summary = {
            "status": status,
            **more,
            "rounds": len(self.history),
            "best_accuracy": best.accuracy if best else None,
            "best_round": best.n if best else None,
            "final_accuracy": scored[-1].accuracy if scored else None,
            "seconds": sum(r.seconds for r in self.history),
            "bytes_up": sum(r.bytes_up for r in self.history),
            "bytes_down": sum(r.bytes_down for r in self.history),
            "versions": {
                "cutlayer": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "machine": f"{platform.system()} {platform.machine()}",
        }
        write_aside(self.out / "summary.json", json.dumps(summary, indent=1).encode())

    def _data(self) -> Dataset:
        folder = Path(self.config.data_dir) if self.config.data_dir else None
        return load_once(self.config.task, folder, self.config.train_rows, self.config.seed)


def load(path: str | Path) -> nn.Module:
    """A model, front or back that a run saved (`model.safetensors`, `front.safetensors`, `back.safetensors`, or a
    client's own `fronts/client-3.safetensors`), ready for inference: `back(front(x))` is `model(x)`."""
    try:
        with safe_open(str(path), framework="pt") as file:
            words = (file.metadata() or {}).get("cutlayer")
        if words is None:
            raise StoreError(f"{path}: not written by cutlayer: it does not say which model it holds")
        about = json.loads(words)
        model = build_model(about["model"], tuple(about["shape"]), about["classes"], seed=0)
        front, back = halves(model, about["cut"])
        module = {"model": model, "front": front, "back": back}[about["part"]]
        module.load_state_dict(load_file(str(path)))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise StoreError(f"{path}: cannot be loaded: {error}") from error
    return module.eval()


def _warm_start(model: nn.Module, path: Path) -> None:
    try:
        model.load_state_dict(load_file(str(path)))
    except (OSError, SafetensorError) as error:
        raise StoreError(f"init = {str(path)!r}: cannot be read: {error}") from error
    except RuntimeError as error:
        raise ContractError(f"init = {str(path)!r}: not the weights of this model: {error}") from error
