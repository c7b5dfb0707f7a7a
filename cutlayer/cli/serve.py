"""`cutlayer serve` and `cutlayer join`: the same training with clients on other machines."""

from __future__ import annotations

import argparse
import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutlayer.cli import flags, live
from cutlayer.cli.progress import console
from cutlayer.cli.train import configured, headline, show
from cutlayer.errors import ContractError
from cutlayer.extras import needs

if TYPE_CHECKING:
    from cutlayer.experiment import Experiment
    from cutlayer.service import Service

SERVE = """\
Wait for clients, then train with them: `cutlayer run`, but for the clients, which are other machines that
`cutlayer join`. Writes the same run directory. Interrupted? `cutlayer resume OUT` goes on, and the clients come back
by themselves.

examples:
  cutlayer certs init --host train.example.org && cutlayer certs client ward-3
  cutlayer serve --task fashion_mnist --scheme smofi --min-clients 4 --rounds 20 --listen 0.0.0.0:7443 \\
                 --certs certs/server --out runs/x
  cutlayer serve --task digits --min-clients 2 --rounds 5 --out runs/y        on this machine alone, nothing encrypted
"""
JOIN = """\
Take part in a training with your own data, which stay here: dial the server, train the front whenever it asks, and come
back by yourself when the connection breaks or the server restarts. Ends when the run ends.

examples:
  cutlayer join --server train.example.org:7443 --certs ward-3 --data ./my-data
  cutlayer join --server 127.0.0.1:7443 --name a --data part.npz             on the server's machine, nothing encrypted
"""
SETTINGS = {  # of serve, besides those of a run; their defaults are cutlayer.Net's
    "listen": ("HOST:PORT", "where clients find the server (default: 127.0.0.1:7443)"),
    "certs": ("FOLDER", "the folder of `cutlayer certs`; without it, loopback only"),
    "min_clients": ("N", "clients that must come before the run begins (default: 2)"),
    "quorum": ("SHARE", "of a round's clients that must finish it; otherwise it is tried again (default: 0.5)"),
    "over_selection": ("FACTOR", "ask so many times as many clients as a round needs (default: 1)"),
    "attempts": ("N", "at one round, before giving up (default: 20)"),
    "deadline": ("SECONDS", "for a step, until it is known how long steps take (default: 60)"),
    "grace": ("SECONDS", "for known clients to come back after a restart (default: 60)"),
    "code": ("CODE", "activations and gradients as raw, float16 or int8: shorter, at a loss (default: raw)"),
}
SWITCHES = {
    "insecure": "serve other machines without certificates: anybody may read and change everything",
    "zstd": "compress what is sent, at no loss",
}
SIMULATED = (  # what only `run` takes, with clients of its own making
    *("partition", "clients", "holdout", "devices", "kappa", "count_sync", "sequential"),
    *("backend", "ranks", "memory_limit"),
)
JOINING: dict[str, tuple[str, str | None, str]] = {  # metavar, default (None: it must be given), words
    "server": ("HOST:PORT", None, "who to dial"),
    "data": ("PATH", None, "your rows, in any form `run --data` takes, or as the server's task is published"),
    "certs": ("FOLDER", "", "your folder of `cutlayer certs client`, or the one with all of them, and --name"),
    "name": ("NAME", "", "who you are, where no certificate says it; each client its own"),
    "out": ("FOLDER", "joined", "for what you keep between rounds, and for the front at the end"),
    "x-column": ("NAME", "x", "the inputs' array or column"),
    "y-column": ("NAME", "y", "the labels' array or column"),
    "patience": ("SECONDS", "3600", "without a server, before giving up"),
    "device": ("DEVICE", "cpu", "torch device"),
}
LIMITS = {
    "steps": "more steps in a round than this (default: 100000)",
    "rate": "a learning rate above this (default: 100)",
    "batch": "more samples in a step than this (default: 65536)",
    "parameters": "a model of more parameters than this (default: a billion)",
}


def add(commands: Any) -> None:
    serve = commands.add_parser(
        "serve", help="train with clients on other machines", description=SERVE, usage="cutlayer serve [FLAGS]"
    )
    group = serve.add_argument_group("clients")
    for name, (metavar, words) in SETTINGS.items():
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, dest=f"net.{name}", metavar=metavar, default=argparse.SUPPRESS, help=words)
    for name, words in SWITCHES.items():
        group.add_argument(f"--{name}", dest=f"net.{name}", action="store_true", default=argparse.SUPPRESS, help=words)
    group.add_argument(
        "--keep-front",
        dest="net.give_front",
        action="store_false",
        default=argparse.SUPPRESS,
        help="do not give clients the front at the end",
    )
    serve.add_argument("--config", metavar="FILE", help="begin with the values of a TOML file")
    serve.add_argument("--preset", metavar="NAME", help="begin with the values of `cutlayer list presets`")
    serve.add_argument("--out", metavar="FOLDER", help="where to write (default: runs/TASK-...)")
    serve.add_argument("--overwrite", action="store_true", help="replace a run that is there already")
    add_watching(serve)
    flags.add_config(serve, hidden=SIMULATED)
    serve.set_defaults(run=_serve)
    _add_join(commands)


def add_watching(command: argparse.ArgumentParser) -> None:
    """Flags of `serve`, and of a `resume` that serves."""
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.add_argument(
        "--ui",
        nargs="?",
        const=7480,
        type=int,
        metavar="PORT",
        help="a page to watch, on this machine (default port: 7480)",
    )


def _add_join(commands: Any) -> None:
    join = commands.add_parser("join", help="be a client of `cutlayer serve`", description=JOIN)
    for name, (metavar, default, words) in JOINING.items():
        shown = f" (default: {default})" if default else ""
        join.add_argument(f"--{name}", metavar=metavar, default=default, help=words + shown, required=default is None)
    for name, words in LIMITS.items():
        about = f"leave if the server asks for {words}"
        join.add_argument(f"--limit-{name}", type=float, metavar="N", help=about)
    join.add_argument("--insecure", action="store_true", help="dial another machine without certificates")
    join.add_argument("--quiet", action="store_true", help="say nothing but errors")
    join.set_defaults(run=_join)


def _serve(args: argparse.Namespace) -> int:
    needs("net")
    from cutlayer import hosting

    for field in flags.config_values(args):
        if field in SIMULATED:
            flag = field.replace("_", "-")
            hint = "; --min-clients is how many must come" if field == "clients" else ""
            raise ContractError(f"--{flag}: of simulated clients, and these are on other machines{hint}")
    config, out = configured(args, hosting.ALONE)
    _page(args)
    with console.status(f"preparing {config.task}"):
        experiment, service = hosting.start(config, hosting.settings(_settings(args)), out, args.overwrite)
    return attend(experiment, service, args)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """What was given of the service, as plain values."""
    found: dict[str, Any] = {}
    for key, given in vars(args).items():
        name = key.removeprefix("net.")
        if key.startswith("net."):
            words = name in ("listen", "certs", "code")
            found[name] = str(Path(given).resolve()) if name == "certs" else given if words else flags.value(str(given))
            if isinstance(given, bool):
                found[name] = given
    return found


def resume(args: argparse.Namespace, out: Path) -> int:
    """`cutlayer resume` of a run that served."""
    needs("net")
    from cutlayer import hosting

    _page(args)
    with console.status(f"reading {out}"):
        experiment, service = hosting.resume(out)
    return attend(experiment, service, args)


def attend(experiment: Experiment, service: Service, args: argparse.Namespace) -> int:
    """The run, with whoever comes."""
    with ExitStack() as stack:
        stack.enter_context(service.open(experiment.run))
        if not args.quiet:
            console.print(headline(experiment), soft_wrap=True, markup=False)
            console.print(_where(service, experiment.run.finished), soft_wrap=True, markup=False)
        if args.ui is not None:
            from cutlayer import ui

            console.print(f"watch: {stack.enter_context(ui.shown(experiment, service, args.ui))}", markup=False)
        for _ in live.follow(experiment, service, args.quiet):
            pass
    return show(experiment.out, args.quiet)


def _page(args: argparse.Namespace) -> None:
    """Whether there can be a page, before anything is written."""
    if args.ui is not None:
        needs("ui")
        from cutlayer import ui

        ui.check(args.ui)


def _where(service: Service, over: bool) -> str:
    host = service.net.listen.rpartition(":")[0]
    how = "mutual TLS" if service.net.certs else "nothing is encrypted"
    what = "the run is complete; clients that were away when it ended may hear of it now"
    if not over:
        what = f"waiting for {service.net.min_clients} client{'s' * (service.net.min_clients > 1)}"
    return f"listening on {host}:{service.hub.port} ({how}); {what}"


def _seconds(name: str, given: str) -> float:
    try:
        return float(given)
    except ValueError as error:
        raise ContractError(f"{name} = {given!r}: expected seconds") from error


def _join(args: argparse.Namespace) -> int:
    needs("net")
    from torch.nn import functional

    from cutlayer import inputs
    from cutlayer.guest import Guest
    from cutlayer.joining import Joining
    from cutlayer.terms import Limits

    given = {name: getattr(args, f"limit_{name}") for name in LIMITS}
    for name, value in given.items():
        if name != "rate" and value is not None and value.is_integer():
            given[name] = int(value)  # 1e6 may be written so
    limits = dataclasses.replace(Limits(), **{name: value for name, value in given.items() if value is not None})
    guest = Guest(Path(args.data), limits, args.x_column, args.y_column)

    def say(line: str) -> None:
        if not args.quiet:
            print(line, flush=True)

    joined = Joining(
        args.server,
        guest,
        args.certs or None,
        args.name,
        Path(args.out),
        functional.cross_entropy,
        limits,
        _seconds("patience", args.patience),
        inputs.device(args.device),
        args.insecure,
        say,
    )()
    say(json.dumps({"rounds": joined.rounds, "front": str(joined.path) if joined.path else None}))
    return 0
