"""Training from Python: `train` for the result, `rounds` for the stream."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from cutlayer.api.reported import tracking, with_report
from cutlayer.clients.remote import RemoteClients
from cutlayer.engine.assemble import assemble
from cutlayer.engine.broadcast import in_turn
from cutlayer.engine.metrics import Metric
from cutlayer.engine.options import Options
from cutlayer.engine.resident import OnDevice
from cutlayer.engine.run import Result, Run
from cutlayer.experiment.program import Where, continued, recorded
from cutlayer.nn.cut import Cut
from cutlayer.optim.local import Clip, Local
from cutlayer.optim.lr_schedule import LRSchedule
from cutlayer.optim.optimizer import Optimizer
from cutlayer.optim.sgd import SGD
from cutlayer.optim.update import Update
from cutlayer.processes.ranks import join, refuse_shared
from cutlayer.schemes.base import Scheme
from cutlayer.simulation.clock import Clock
from cutlayer.simulation.devices import Device
from cutlayer.track.tracked import with_trackers

OPTIONS = (Options.__doc__ or "").partition("\n\n")[2].rstrip()
P = ParamSpec("P")
R = TypeVar("R")


def rounds(
    model: nn.Module,
    clients: Sequence[Any] | RemoteClients,
    test: Any = None,
    *,
    cut: Cut = 0,
    scheme: str | Scheme = "smofi",
    local: str | Local | Sequence[str | Local] | None = None,
    clip: float | Clip | None = None,
    update: str | Update | None = None,
    optimizer: str | Optimizer = SGD(lr=0.05, momentum=0.9, weight_decay=5e-4, decay=1.0),
    server_optimizer: str | Optimizer | None = None,
    lr_schedule: str | LRSchedule | Callable[..., float] | None = None,
    rounds: int = 10,
    participation: float | int = 1.0,
    batch_size: int = 32,
    accumulate: int = 1,
    local_epochs: int = 5,
    local_steps: int | None = None,
    protocol: str = "smofi",
    last_batch: Literal["drop", "keep"] = "drop",
    small_client: Literal["skip", "one_batch"] | None = None,
    labels: str = "send",
    noise: float = 0.0,
    calibrate: float = 0.0,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
    metric: Metric | None = None,
    profile: str | Sequence[Device | tuple[float, float]] | None = None,
    clock: Clock = Clock(),
    evaluate_every: int = 1,
    kept_memory: float | None = 2048,
    seed: int = 0,
    shuffle: bool = True,
    backend: str = "auto",
    stack: int | None = None,
    threads: int | None = None,
    torch_threads: int = 1,
    ranks: Literal["ordered", "fast"] | None = None,
    memory_limit: float | None = None,
    autocast: Literal["bfloat16"] | None = None,
    compile: bool = False,
    device: str | torch.device = "cpu",
    data_on_device: OnDevice = "auto",
    target: float | None = None,
    progress: bool = False,
    detail: bool = False,
    out: str | Path | None = None,
    resume: Literal["auto", "never", "must"] = "auto",
    checkpoint_every: int = 1,
    track: str | Sequence[str] | None = None,
) -> Run:
    """Train as `train` does, but return the run: a stream of Round records.

    >>> import torch, cutlayer as cl
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 3))
    >>> [round.steps for round in cl.rounds(net, [(x, y)], rounds=2, batch_size=10)]
    [30, 30]
    """
    return _asked(locals())


def _asked(given: Mapping[str, Any]) -> Run:
    """Return the run that the arguments of `rounds` ask for."""
    options = Options(**{field.name: given[field.name] for field in fields(Options)})
    out, trackers = given["out"], tracking(given["track"], given["out"])
    where = None if out is None else Where(Path(out), given["resume"], given["checkpoint_every"])
    run = begun(given["model"], given["clients"], given["test"], options, where)
    return run if where is None else with_trackers(run, where.out, trackers)


def begun(
    model: nn.Module, clients: Sequence[Any] | RemoteClients, test: Any, options: Options, where: Where | None
) -> Run:
    """Return a run, new or resumed. `where`: the folder that it writes into, if any."""
    if where is None:
        run = assemble(model, clients, test, options)
        refuse_shared(run.setup.processes, run.setup.device)
        return run
    options = continued(options, where)
    run = in_turn(join(options.ranks), lambda: assemble(model, clients, test, options))
    refuse_shared(run.setup.processes, run.setup.device)
    return with_report(recorded(run, model, options, where), where.out)


def _takes_what(original: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the signature of another, for people and type checkers, and explain the options."""

    def dress(function: Callable[..., R]) -> Callable[P, R]:
        about, gap, example = (function.__doc__ or "").partition("\n\n    >>>")
        function.__doc__ = f"{about}\n{OPTIONS}{gap}{example}"
        function.__signature__ = inspect.signature(original).replace(return_annotation=Result)  # type: ignore[attr-defined]
        return function

    return dress


@_takes_what(rounds)
def train(*arguments: Any, **named: Any) -> Result:
    """Train `model` over `clients` and return the trained copy and the history; `model` itself is not modified.

    model           any nn.Module (`cl.blocks` says where it can be cut); it is put in training mode
    clients         a list with what each client holds: (x, y) tensors or arrays (also mapped from files), a map-style
                    dataset, an iterable one or a DataLoader (read in order), or `cl.rows(...)`: tables, frames
    test            one of these for the global model; a list with one per client: each client's own model on its own,
                    pooled, with the series `sampled`, `ever` and `all`; None: no evaluation
    out             a folder: every round is written there (journal, checkpoints; at the end model and report), as
                    `cutlayer run` does, and the same call goes on after a crash, to the same bits. With other
                    arguments, other data or another model it is refused. `cl.open` reads the folder
    resume          "auto"; "never": `out` must not hold a run; "must": it must hold one
    checkpoint_every  rounds between checkpoints
    track           "tensorboard", "mlflow", "wandb" or "trackio", or a list of them: they read the journal in `out`

    >>> import torch, cutlayer as cl
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> clients = [(x[:20], y[:20]), (x[20:], y[20:])]
    >>> result = cl.train(model, clients, test=(x, y), cut=1, rounds=2, batch_size=10,
    ...                   scheme=cl.SMoFi(alpha=-0.1), update=cl.FedAvgM(beta=0.3))
    >>> [round.n for round in result.history]
    [1, 2]
    """
    run = rounds(*arguments, **named)
    for _ in run:
        pass
    return Result(run.model, run.history, run.clients)
