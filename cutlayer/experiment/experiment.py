"""From a config to a run directory: build the run, write every round to disk, resume after a crash.

The run is a stream of rounds; each is written to the journal and to checkpoints, then passed on.
"""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from cutlayer._version import __version__
from cutlayer.clients.remote import RemoteClients
from cutlayer.core import heap, sealed
from cutlayer.core.files import as_path, from_root, write_aside
from cutlayer.core.lock import Lock
from cutlayer.core.randomness import EVERYBODY, OwnRandomness, address
from cutlayer.engine import broadcast
from cutlayer.engine.broadcast import at_root, in_turn
from cutlayer.engine.records import Global, Round
from cutlayer.engine.run import Run
from cutlayer.engine.train import rounds
from cutlayer.errors import ContractError, Diverged, Restored, StoreError
from cutlayer.experiment import checkpoint, description, journal, model_profile, run_directory
from cutlayer.experiment.config import Config
from cutlayer.experiment.description import Changes, Description, restore, settled
from cutlayer.experiment.population import load_data, look, populate, tested
from cutlayer.nn.cut import halves
from cutlayer.processes.ranks import join
from cutlayer.registry import MODELS
from cutlayer.simulation.clock import Clock


def build_model(spec: dict[str, Any], shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build a model by name, with weights drawn at the seed's address."""
    arguments = {key: value for key, value in spec.items() if key != "name"}
    with OwnRandomness(address(seed, 0, EVERYBODY, "weights")):
        try:
            model: nn.Module = MODELS[spec["name"]].make(shape, classes, **arguments)
        except (RuntimeError, ValueError, TypeError, ZeroDivisionError) as error:
            raise ContractError(f"model = {spec}: it cannot be built for inputs of shape {shape}: {error}") from error
    return model


def assemble(config: Config, warm: bool = True, remote: RemoteClients | None = None) -> Run:
    """Build the run that a config describes; write nothing. `warm`: start from the weights in `init`.
    `remote`: clients on other machines; the task's data here are only for testing."""
    look(config)
    data = load_data(config)
    model = build_model(config.model, data.shape, data.classes, config.seed)
    if config.init is not None and warm:
        warm_start(model, Path(config.init))
    clients, test = populate(config, data) if remote is None else (remote, tested(data))
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
        labels=config.labels,
        noise=config.noise,
        profile=None if config.profile == "alike" else config.profile,
        clock=Clock(config.kappa, config.count_sync, config.sequential),
        kept_memory=config.kept_memory,
        evaluate_every=config.evaluate_every,
        seed=config.seed,
        backend=config.backend,
        threads=config.threads,
        ranks=config.ranks,
        memory_limit=config.memory_limit,
        autocast=config.autocast,
        device=config.device,
        target=config.target,
    )


class Experiment:
    """A run with a directory: iterate it to train."""

    def __init__(
        self,
        config: Config,
        out: Path,
        run: Run,
        history: list[Round],
        lock: Lock | None,
        about: checkpoint.About,
    ) -> None:
        self.config, self.out, self.run, self.history = config, out, run, history
        self._lock, self._about = lock, about

    @classmethod
    def start(
        cls,
        config: Config,
        out: Path,
        overwrite: bool = False,
        remote: RemoteClients | None = None,
        serve: Mapping[str, Any] | None = None,
    ) -> Experiment:
        """Start a new run. Errors in the config or the data are raised before anything is written.
        `serve`: the table [serve] of a run with remote clients."""
        if config.init and overwrite and from_root("out", out) in from_root("init", config.init).parents:
            raise ContractError(f"init = {config.init!r}: it lies in the folder that --overwrite empties")
        run = in_turn(join(config.ranks), lambda: assemble(config, remote=remote))
        config = config.model_copy(update={"backend": run.setup.backend.name})  # a resumed run keeps the choice

        about = checkpoint.About(Description(config, serve).dump(), model_profile.digest(run))

        def claim() -> Lock:
            lock = run_directory.claim(out, description.FILE, about.config, overwrite)
            try:
                write_aside(out / model_profile.FILE, model_profile.dump(run, load_data(config)))
                run.setup.spill_cache.place(out / run_directory.SPILL)
                checkpoint.save(out, run.state, about)
            except BaseException:
                lock.close()
                raise
            return lock

        return cls(config, out, run, [], at_root(run.setup.processes, claim), about)

    @classmethod
    def resume(cls, out: Path, remote: RemoteClients | None = None, changes: Changes = "refuse") -> Experiment:
        """Resume a run, interrupted or complete, from its newest undamaged checkpoint. `changes`: what to do if its
        config has changed."""
        known = checkpoint.about(out)
        before = None if known is None else known.config
        described = settled(out, before, changes)
        processes = join(described.config.ranks)
        lock = at_root(processes, lambda: Lock(out))
        try:
            if lock is not None:
                restore(out / description.FILE, before, described.given)
            return cls._resumed(out, described, known, lock, remote)
        except BaseException:
            if lock is not None:
                lock.close()
            raise

    @classmethod
    def _resumed(
        cls,
        out: Path,
        described: Description,
        known: checkpoint.About | None,
        lock: Lock | None,
        remote: RemoteClients | None,
    ) -> Experiment:
        config, processes = described.config, join(described.config.ranks)
        rounds_done = len(journal.read(out / journal.FILE))
        run = in_turn(processes, lambda: assemble(config, False, remote))
        about = checkpoint.About(described.dump(), model_profile.digest(run))
        found = checkpoint.load(out, run.state, rounds_done) if processes.root else None
        if processes.root and found is None:
            run = assemble(config, True, remote)
            if not checkpoint.began_with(out, run.state):
                raise StoreError(f"{out}: its first checkpoint is damaged, and its initial weights have changed")
            if rounds_done:
                said = f"{out}: no checkpoint of its rounds; starting again"
                warnings.warn(said, checkpoint.LostJournal, stacklevel=3)
            checkpoint.save(out, run.state, about)
        history = at_root(processes, lambda: cls._cleared(out, described, run, found, known)) or []
        if found is not None:
            run.resume(found, history)
        if processes.size > 1:
            if processes.root:
                broadcast.send(processes, run.state)
            else:
                run.resume(broadcast.receive(processes, {}), journal.read(out / journal.FILE))
        return cls(config, out, run, history, lock, about)

    @staticmethod
    def _cleared(
        out: Path, described: Description, run: Run, found: Global | None, known: checkpoint.About | None
    ) -> list[Round]:
        """Return the rounds up to `found` and remove all later ones; refuse a run whose data have changed."""
        about, config = checkpoint.About(described.dump(), model_profile.digest(run)), described.config
        if known is not None and known.data not in ("", about.data):
            raise StoreError(f"{out}: its data, or which client holds which rows, have changed since the run began")
        if found is not None and known is not None and known.config != about.config:
            checkpoint.save(out, found, about)  # changes were accepted: the new config counts from here on
        try:
            model_profile.read(out)
        except StoreError as error:
            if (out / model_profile.FILE).exists():
                warnings.warn(f"{error}; written again", Restored, stacklevel=4)
            write_aside(out / model_profile.FILE, model_profile.dump(run, load_data(config)))
        run.setup.spill_cache.place(out / run_directory.SPILL)
        checkpoint.forget_after(out, 0 if found is None else found.n)
        return journal.trim(out / journal.FILE, 0 if found is None else found.n)

    def __iter__(self) -> Iterator[Round]:
        """Play the remaining rounds; each is on disk before it is yielded. (Of several ranks, the root writes.)"""
        if self._lock is None:
            yield from self.run
            return
        with self._lock:
            yield from self._rounds()

    def _rounds(self) -> Iterator[Round]:
        try:
            for record in self.run:
                journal.append(self.out / journal.FILE, record)
                self.history.append(record)
                if record.n % self.config.checkpoint_every == 0 or self.run.finished:
                    checkpoint.save(self.out, self.run.state, self._about)
                yield record
        except Diverged as error:
            checkpoint.save(self.out, self.run.state, self._about)  # the last good weights
            self._summarise("diverged", message=str(error))
            raise
        self._finish()

    def _finish(self) -> None:
        model = self.run.model
        lo = self.config.cut if isinstance(self.config.cut, int) else self.config.cut[0]
        front, back = halves(model, lo)
        data = load_data(self.config)
        about = {"model": self.config.model, "shape": list(data.shape), "classes": data.classes, "cut": lo}
        kept = self.run.setup.traits.carry == "keep" and self.run.setup.cohort.remote
        known = {"model": model, "front": front, "back": back}
        if kept:  # the clients have the fronts and, where labels stay, the last blocks
            known = {"back": back if self.config.labels == "send" else back[:-1]}
        for part, module in known.items():
            words = {"cutlayer": json.dumps({**about, "part": "middle" if module is not back and kept else part})}
            sealed.save_model(self.out / f"{part}.safetensors", module.state_dict(), words)
        held = "front" if self.config.labels == "send" else "ends"
        self._save_fronts(lo, {"cutlayer": json.dumps({**about, "part": held})})
        self._summarise("complete", sha256=sealed.digest(next(iter(known.values())).state_dict()))

    def _save_fronts(self, cut: int, words: dict[str, str]) -> None:
        """Save the front of every client that keeps one."""
        own = [j for j in sorted(self.run.state.participations) if self.run.state.front(j) is not None]
        if own:
            (self.out / "fronts").mkdir(exist_ok=True)
        for j in own:
            front, back = halves(self.run.personal(j), cut)
            held = front if self.config.labels == "send" else nn.Sequential(*front, back[-1])
            sealed.save_model(self.out / "fronts" / f"client-{j}.safetensors", held.state_dict(), words)

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
            "sim_seconds": sum(r.sim_seconds or 0.0 for r in self.history),
            "peak_memory_mib": _peak_memory(),
            "bytes_up": sum(r.bytes_up for r in self.history),
            "bytes_down": sum(r.bytes_down for r in self.history),
            "versions": {
                "cutlayer": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "machine": f"{platform.system()} {platform.machine()}",
        }
        run_directory.write_summary(self.out, summary)


def _peak_memory() -> float | None:
    """Return the peak memory of this process in MiB, data included; None where the system does not count it."""
    peak = heap.peak()
    return None if peak is None else peak / 2**20


def load(path: str | Path) -> nn.Module:
    """Load a model, front or back that a run saved (`model.safetensors`, `front.safetensors`, `back.safetensors`, or a
    client's own `fronts/client-3.safetensors`), ready for inference: `back(front(x))` is `model(x)`."""
    try:
        tensors, words = sealed.unpack(as_path("path", path).read_bytes(), older=True)
        if "cutlayer" not in words:
            raise StoreError("not written by cutlayer: it does not say which model it holds")
        about = sealed.parsed(words["cutlayer"])
        model = build_model(about["model"], tuple(about["shape"]), about["classes"], seed=0)
        front, back = halves(model, about["cut"])
        ends = nn.Sequential(*front, back[-1])  # a client's blocks, where labels stay
        parts = {"model": model, "front": front, "back": back, "middle": back[:-1], "ends": ends}
        module = parts[about["part"]]
        module.load_state_dict(tensors)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, StoreError) as error:
        raise StoreError(f"{path}: cannot be loaded: {error}") from error
    return module.eval()


def warm_start(model: nn.Module, path: Path) -> None:
    try:
        model.load_state_dict(load_file(str(path)))
    except (OSError, SafetensorError) as error:
        raise StoreError(f"init = {str(path)!r}: cannot be read: {error}") from error
    except RuntimeError as error:
        raise ContractError(f"init = {str(path)!r}: not the weights of this model: {error}") from error
