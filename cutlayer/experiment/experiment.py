"""From a config to a run directory: build the run that a config describes, and resume it after a crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cutlayer.clients.remote import RemoteClients
from cutlayer.core.files import from_root
from cutlayer.core.lock import Lock
from cutlayer.engine.assemble import assemble as assemble_run
from cutlayer.engine.broadcast import at_root, in_turn
from cutlayer.engine.options import Options
from cutlayer.engine.records import Round
from cutlayer.engine.run import Run
from cutlayer.errors import ContractError
from cutlayer.experiment import checkpoint, description, recorder
from cutlayer.experiment.config import Config
from cutlayer.experiment.description import Changes, Description, restore, settled
from cutlayer.experiment.model_files import Saved, build_model, warm_start, with_adapters
from cutlayer.experiment.population import load_data, look, populate, tested
from cutlayer.experiment.recorder import Blueprint
from cutlayer.nn.language import Perplexity, next_token
from cutlayer.processes.ranks import join, refuse_shared
from cutlayer.simulation.clock import Clock


def assemble(config: Config, warm: bool = True, remote: RemoteClients | None = None) -> Run:
    """Build the run that a config describes; write nothing. `warm`: start from the weights in `init`.
    `remote`: clients on other machines; the task's data here are only for testing."""
    look(config)
    data = load_data(config)
    model = build_model(with_adapters(config.model, config.peft), data.shape, data.classes, config.seed)
    if config.init is not None and warm:
        warm_start(model, Path(config.init))
    clients, test = populate(config, data) if remote is None else (remote, tested(data))
    return assemble_run(model, clients, test, options(config))


def options(config: Config) -> Options:
    """Return the options of `train` that a config describes."""
    return Options(
        cut=config.cut,
        scheme=config.part("scheme"),
        local=config.part("local"),
        clip=config.clip,
        update=config.part("update"),
        optimizer=config.part("optimizer"),
        server_optimizer=config.part("server_optimizer"),
        lr_schedule=config.part("lr_schedule"),
        rounds=config.rounds,
        participation=config.participation,
        batch_size=config.batch_size,
        accumulate=config.accumulate,
        local_epochs=config.local_epochs,
        local_steps=config.local_steps,
        protocol=config.protocol,
        last_batch=config.last_batch,
        small_client=config.small_client,
        labels=config.labels,
        noise=config.noise,
        calibrate=config.calibrate,
        profile=None if config.profile == "alike" else config.profile,
        clock=Clock(config.kappa, config.count_sync, config.sequential),
        kept_memory=config.kept_memory,
        evaluate_every=config.evaluate_every,
        seed=config.seed,
        backend=config.backend,
        stack=config.stack,
        threads=config.threads,
        torch_threads=config.torch_threads,
        ranks=config.ranks,
        memory_limit=config.memory_limit,
        autocast=config.autocast,
        compile=config.compile,
        device=config.device,
        data_on_device=config.data_on_device,
        target=config.target,
        detail=config.detail,
        **_of_text(config),
    )


def _of_text(config: Config) -> dict[str, Any]:
    """Return loss and metric of a language model, where the data are text."""
    return {} if config.tokens is None else {"loss": next_token, "metric": Perplexity()}


class Experiment:
    """A run with a directory: iterate it to train."""

    def __init__(self, config: Config, out: Path, run: Run) -> None:
        self.config, self.out, self.run = config, out, run

    @property
    def history(self) -> list[Round]:
        """The rounds so far."""
        return self.run.history

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
        refuse_shared(run.setup.processes, run.setup.device)
        chosen = {"backend": run.setup.backend.name, "stack": run.setup.stack}  # a resumed run keeps the choice
        config = config.model_copy(update=chosen)
        recorder.start(out, run, _blueprint(Description(config, serve), remote), overwrite)
        return cls(config, out, run)

    @classmethod
    def resume(cls, out: Path, remote: RemoteClients | None = None, changes: Changes = "refuse") -> Experiment:
        """Resume a run, interrupted or complete, from its newest undamaged checkpoint. `changes`: what to do if its
        config has changed."""
        known = checkpoint.about(out)
        before = None if known is None else known.config
        described = settled(out, before, changes)
        lock = at_root(join(described.config.ranks), lambda: Lock(out))
        try:
            if lock is not None:
                restore(out / description.FILE, before, described.given)
        except BaseException:
            if lock is not None:
                lock.close()
            raise
        run = recorder.resume(out, _blueprint(described, remote), known, lock)
        return cls(described.config, out, run)

    def __iter__(self) -> Iterator[Round]:
        """Play the remaining rounds; each is on disk before it is yielded. (Of several ranks, the root writes.)"""
        try:
            yield from self.run
        finally:
            self.run.close()


def _blueprint(described: Description, remote: RemoteClients | None) -> Blueprint:
    config = described.config
    look(config)
    data = load_data(config)
    return Blueprint(
        text=described.dump(),
        build=lambda warm: assemble(config, warm, remote),
        saved=Saved(with_adapters(config.model, config.peft), data.shape, data.classes),
        every=config.checkpoint_every,
        ranks=config.ranks,
    )
