"""A run directory whose clients are on other machines: the table [serve] of its config says how they are served."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from cutlayer.data.transform import encode
from cutlayer.engine.assemble import in_blocks
from cutlayer.errors import ContractError, StoreError, unknown
from cutlayer.experiment import checkpoint, description
from cutlayer.experiment.config import Config
from cutlayer.experiment.description import Changes, settled
from cutlayer.experiment.experiment import Experiment, options
from cutlayer.experiment.model_files import build_model, with_adapters
from cutlayer.experiment.population import load_data, look, tested, training_view
from cutlayer.network.protocol.settings import Net
from cutlayer.network.server import roster
from cutlayer.network.server.service import About, Service
from cutlayer.network.transport import free

KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
ALONE = ("profile", "memory_limit", "stack", "clients")  # fields of a config that are for simulated clients only


def start(config: Config, net: Net, out: Path, overwrite: bool = False) -> tuple[Experiment, Service]:
    """Start a new run, and make the service that its clients dial."""
    for field in ALONE:
        given, default = getattr(config, field), Config.model_fields[field].default
        if given != default:
            raise ContractError(f"{field} = {given!r}: clients are on other machines; expected no value")
    run = uuid.uuid4().hex
    config = config.model_copy(update={"backend": "loop"})  # remote clients compute on their own machines
    service = _service(config, net, None, run)
    free("listen", net.listen)
    words = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(net).items()}
    serve = {"run": run, **{k: v for k, v in words.items() if v is not None}}
    experiment = Experiment.start(config, out, overwrite, service.clients, serve)
    service.roster.path = out / roster.FILE  # only now, because the roster of an overwritten run has been removed
    return experiment, service


def resume(out: Path, changes: Changes = "refuse") -> tuple[Experiment, Service]:
    """Resume a run, with the same clients under the same numbers. `changes`: what to do if its config has changed."""
    described = settled(out, checkpoint.config(out), changes)
    net, run = read(described.serve or {}, out / description.FILE)
    service = _service(described.config, net, out / roster.FILE, run)
    return Experiment.resume(out, service.clients, changes), service


def read(serve: Mapping[str, Any], path: Path) -> tuple[Net, str]:
    """Return the settings in the table [serve] of a config, and the id of the run."""
    given = dict(serve)
    run = given.pop("run", None)
    if not isinstance(run, str) or not run.isalnum():
        raise StoreError(f"{path}: damaged: no `run` in [serve]")
    try:
        return settings(given), run
    except ContractError as error:
        raise StoreError(f"{path}: damaged: [serve]: {error}") from error


def settings(values: Mapping[str, Any]) -> Net:
    """Build the settings from plain values, and check each."""
    known = {field.name: field for field in fields(Net)}
    for name, value in values.items():
        if name not in known:
            raise unknown("setting", name, known)
        kind = str if name == "certs" else type(known[name].default)
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int)) or (name, value) == ("certs", None)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise ContractError(f"{name} = {value!r}: expected {KINDS[kind]}")
    certs = values.get("certs")
    return Net(**{**values, **({} if certs is None else {"certs": Path(certs)})})


def _service(config: Config, net: Net, known: Path | None, run: str) -> Service:
    look(config)
    data = load_data(config)
    rows = tested(data)
    seen = training_view(config, data)
    spec = with_adapters(config.model, config.peft)
    about = About(spec, data.shape, config.task, encode(seen), tuple(data.class_names))
    example = rows if rows is not None else (data.x[:4], data.y[:4])
    model = in_blocks(build_model(spec, data.shape, data.classes, config.seed), [example])
    return Service(
        model,
        example,
        net,
        config.cut,
        config.labels,
        loss=options(config).loss,
        participation=config.participation,
        device=config.device,
        about=about,
        run_id=run,
        roster_path=known,
    )
