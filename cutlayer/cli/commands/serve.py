"""`cutlayer serve` and `cutlayer join`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutlayer.cli import flags, live
from cutlayer.cli.commands import plan
from cutlayer.cli.commands.plan import configured
from cutlayer.cli.commands.report import show
from cutlayer.cli.output import console
from cutlayer.cli.serve import LIMITS, SIMULATED
from cutlayer.cli.signals import Terminated
from cutlayer.core.devices import chosen
from cutlayer.core.extras import needs
from cutlayer.core.files import as_path, from_root
from cutlayer.errors import ContractError
from cutlayer.track.names import asked

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from cutlayer.experiment.description import Changes
    from cutlayer.experiment.experiment import Experiment
    from cutlayer.network.server.service import Service


def run(args: argparse.Namespace) -> int:
    needs("net")
    from cutlayer.experiment import server_directory

    for field in flags.config_values(args):
        if field in SIMULATED:
            flag = field.replace("_", "-")
            hint = "; --min-clients is how many must come" if field == "clients" else ""
            raise ContractError(f"--{flag}: it applies to simulated clients, and these are on other machines{hint}")
    try:
        config, out, _ = configured(args, server_directory.ALONE)
        _page(args)
        with console.status(f"preparing {config.task}"):
            experiment, service = server_directory.start(
                config, server_directory.settings(_settings(args)), out, args.overwrite
            )
    except Terminated:
        log.warning("told to stop before clients could connect")
        return 0
    return attend(experiment, service, args)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of the server that were given, as plain values."""
    found: dict[str, Any] = {}
    for key, given in vars(args).items():
        name = key.removeprefix("net.")
        if key.startswith("net."):
            words = name in ("listen", "certs", "code")
            found[name] = (
                str(from_root("certs", given)) if name == "certs" else given if words else flags.value(str(given))
            )
            if isinstance(given, bool):
                found[name] = given
    return found


def resume(args: argparse.Namespace, out: Path, changes: Changes) -> int:
    """Resume a run that served."""
    needs("net")
    from cutlayer.experiment import server_directory

    try:
        _page(args)
        with console.status(f"reading {out}"):
            experiment, service = server_directory.resume(out, changes)
    except Terminated:
        log.warning("told to stop before clients could connect")
        return 0
    return attend(experiment, service, args)


def attend(experiment: Experiment, service: Service, args: argparse.Namespace) -> int:
    """Run with the clients that connect. SIGTERM is no failure: the run can be resumed from its folder."""
    try:
        return _attend(experiment, service, args)
    except Terminated:
        done = len(experiment.history)
        log.warning("told to stop after round %d; `cutlayer resume %s` goes on", done, experiment.out)
        return 0


def _attend(experiment: Experiment, service: Service, args: argparse.Namespace) -> int:
    from cutlayer.track.tracked import with_trackers

    with_trackers(experiment.run, experiment.out, asked(args.track))
    with ExitStack() as stack:
        stack.enter_context(service.open(experiment.run))
        if not args.quiet:
            plan.show(experiment, origins=None)
            console.print(_where(service, experiment.run.finished), soft_wrap=True, markup=False)
        if args.ui is not None:
            from cutlayer.ui import page

            console.print(f"watch: {stack.enter_context(page.shown(experiment, service, args.ui))}", markup=False)
        if args.metrics is not None:
            from cutlayer.ui import metrics

            address = stack.enter_context(metrics.shown(experiment, service, args.metrics))
            console.print(f"metrics: {address}", markup=False)
        for _ in live.follow(experiment, service, args.quiet):
            pass
    return show(experiment.out, args.quiet)


def _page(args: argparse.Namespace) -> None:
    """Check that the page, the metrics and the trackers can be had, before anything is written."""
    asked(args.track)
    if args.ui is not None:
        needs("ui")
        from cutlayer.ui import page

        page.check(args.ui)
    if args.metrics is not None:
        needs("metrics")
        from cutlayer.network.transport import free

        free("metrics", args.metrics)


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


def join(args: argparse.Namespace) -> int:
    needs("net")
    from cutlayer.experiment.client_data import ClientData, loss
    from cutlayer.network.client.loop import ClientLoop, Peer, Workplace
    from cutlayer.network.protocol.settings import Limits

    given = {name: getattr(args, f"limit_{name}") for name in LIMITS}
    for name, value in given.items():
        if name != "rate" and value is not None and value.is_integer():
            given[name] = int(value)  # accept 1e6 for a whole number
    limits = dataclasses.replace(Limits(), **{name: value for name, value in given.items() if value is not None})
    own = flags.config_values(args).get("model")
    data = ClientData(as_path("data", args.data), limits, args.x_column, args.y_column, own)

    def say(line: str) -> None:
        log.info("%s", line)

    def warn(line: str) -> None:
        log.warning("%s", line)

    peer = Peer(args.server, args.certs or None, args.name, args.insecure, _seconds("patience", args.patience))
    out, device = as_path("out", args.out), chosen(args.device)
    joined = ClientLoop(peer, Workplace(data, out, loss, limits, device), say, warn)()
    if not args.quiet:
        print(json.dumps({"rounds": joined.rounds, "front": str(joined.path) if joined.path else None}), flush=True)
    return 0
