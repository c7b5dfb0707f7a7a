"""Runs that a program starts: the arguments of `train` as the text of a run directory, and how such a run goes on.

Parts, losses and schedules are objects here. The text says what they are, so that a program that is started again can
be told whether it still asks for the same run: a part is known by its class and its fields, a function by its qualified
name and a digest of its source.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import numbers
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any, Literal

import tomli_w
from torch import Tensor, nn

from cutlayer.core.files import as_path
from cutlayer.core.lock import Lock
from cutlayer.core.sealed import digest
from cutlayer.engine.broadcast import at_root
from cutlayer.engine.options import Options
from cutlayer.engine.run import Run
from cutlayer.errors import ContractError, StoreError, expect
from cutlayer.experiment import checkpoint, description, model_profile, recorder
from cutlayer.experiment.description import PROGRAM
from cutlayer.experiment.model_files import Saved
from cutlayer.experiment.recorder import Blueprint
from cutlayer.network.protocol.settings import Net
from cutlayer.nn.cut import unwrapped
from cutlayer.registry import KINDS, Part

UNSAID = (  # or said otherwise
    *("progress", "threads", "kept_memory", "ranks", "device", "data_on_device", "clock", "profile", "detail"),
)
PARTS = ("scheme", "local", "update", "optimizer")
# said where they were chosen: older runs do not say them
NEWER = ("accumulate", "lr_schedule", "calibrate", "compile", "torch_threads")
Resume = Literal["auto", "never", "must"]


class Named:
    """A function under a name of the caller's."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        self.__wrapped__ = function  # whose parameters it has

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        return self.function(*arguments, **more)

    def __repr__(self) -> str:
        return f"named {self.name!r}"


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a loss, metric or schedule that is known by this name when a run is resumed; its source may change."""
    expect(isinstance(name, str) and bool(name), "name", name, "a text")
    return Named(function, name)


@dataclass(frozen=True)
class Where:
    """The folder of a run, whether it may or must go on with a run in there, and the rounds between checkpoints."""

    out: Path
    resume: Resume = "auto"
    every: int = 1

    def __post_init__(self) -> None:
        as_path("out", self.out)
        expect(self.resume in ("auto", "never", "must"), "resume", self.resume, "'auto', 'never' or 'must'")
        expect(isinstance(self.every, int) and self.every >= 1, "checkpoint_every", self.every, "at least 1")

    @property
    def exists(self) -> bool:
        return (self.out / description.FILE).exists() or checkpoint.about(self.out) is not None

    def told(self) -> dict[str, Any]:
        """What the run in the folder was begun with."""
        known = checkpoint.about(self.out)
        return description.settle(self.out / description.FILE, None if known is None else known.config, "undo")


def continued(options: Options, where: Where) -> Options:
    """Return the options with the backend and the size of stacks that the run in the folder, if there is one, chose
    when it began."""
    if not where.exists:
        return options
    told = where.told()
    name = told.get("backend", "auto") if options.backend == "auto" else options.backend
    return replace(options, backend=name, stack=told.get("stack") if options.stack is None else options.stack)


def recorded(run: Run, model: nn.Module, options: Options, where: Where, serve: Mapping[str, Any] | None = None) -> Run:
    """Let a run write into its folder, from the start or from where the run in that folder was interrupted."""
    values = describe(run, model, options)
    if serve is not None:
        values[description.TABLE] = dict(serve)
    s = run.setup
    saved = Saved({"name": PROGRAM, "class": _qualified(type(unwrapped(model)))}, s.row, s.classes or 0)
    text = f"{description.HEADER}{tomli_w.dumps(values)}"
    blueprint = Blueprint(text, lambda warm: run, saved, where.every, options.ranks)
    out = where.out
    if not where.exists:
        if where.resume == "must":
            raise StoreError(f"out = {str(out)!r}: no run to resume in it; expected one, or resume='auto'")
        recorder.start(out, run, blueprint)
        return run
    if where.resume == "never":
        raise StoreError(f"out = {str(out)!r} already holds a run; expected another folder, or resume='auto'")
    return _resumed(run, blueprint, values, out)


def serve_table(where: Where | None, net: Net) -> dict[str, Any]:
    """Return the table [serve] of a run with remote clients: its id, which is that of the run in the folder if there is
    one, and the settings that decide what clients send and who counts."""
    run = uuid.uuid4().hex
    if where is not None and where.exists:
        run = str(where.told().get(description.TABLE, {}).get("run", run))
    counted = ("min_clients", "quorum", "over_selection", "attempts", "code", "zstd")
    return {"run": run, **{name: getattr(net, name) for name in counted}}


def _resumed(run: Run, blueprint: Blueprint, values: dict[str, Any], out: Path) -> Run:
    known = checkpoint.about(out)
    before = None if known is None else known.config
    was = description.settle(out / description.FILE, before, "undo")  # the program says what is wanted
    if PROGRAM not in was:
        raise StoreError(f"out = {str(out)!r} holds a run of the command line: `cutlayer resume {out}` continues it")
    model_profile.refuse_other(out, run)
    different = [f"{name} was {old}, is {new}" for name, old, new in description.differences(was, values)]
    if different:
        raise ContractError(
            f"out = {str(out)!r}: its run was begun with other arguments: {'; '.join(different)}. Expected the same, "
            "or another folder"
        )
    lock = at_root(run.setup.processes, lambda: Lock(out))
    if lock is not None:
        description.restore(out / description.FILE, before, was)
    return recorder.resume(out, blueprint, known, lock)


def describe(run: Run, model: nn.Module, options: Options) -> dict[str, Any]:
    """Return the arguments of a training as plain values."""
    s = run.setup
    values: dict[str, Any] = {
        field.name: said(getattr(options, field.name))
        for field in fields(options)
        if field.name not in (*UNSAID, *PARTS, "server_optimizer")
        and not (field.name in NEWER and getattr(options, field.name) == field.default)
    }
    values |= {
        "backend": s.backend.name,
        "stack": s.stack,
        "device": str(options.device),
        "kappa": s.clock.kappa,
        "count_sync": s.clock.sync,
        "sequential": s.clock.sequential,
        "profile": options.profile if isinstance(options.profile, str) else "alike" if not options.profile else "given",
        PROGRAM: {"model": _qualified(type(unwrapped(model)))},
        **{field: part(field, getattr(s, field)) for field in PARTS},
        "server_optimizer": part("optimizer", s.server_optimizer),
    }
    return {name: value for name, value in values.items() if value is not None}


def part(field: str, given: Any) -> dict[str, Any] | None:
    """Return a part as a table: its name, or its import path, and its parameters."""
    if given is None:
        return None
    values = said(given)
    inside = dict(values) if isinstance(values, Mapping) else {"value": values}
    inside.pop("class", None)
    for name, known in KINDS[field].shipped.items():
        assert isinstance(known, Part)
        if known.make is type(given) and all(inside.get(key) == value for key, value in known.fixed.items()):
            return {"name": name, **{key: value for key, value in inside.items() if key not in known.fixed}}
    return {"name": _qualified(type(given), ":"), **inside}


def said(value: Any) -> Any:
    """Return a value in a form that TOML can hold and that says what the value is. None: nothing to say."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):  # of Python or NumPy
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, tuple | list):
        return [said(one) for one in value if one is not None]
    if isinstance(value, Mapping):
        return {str(key): said(one) for key, one in value.items() if one is not None}
    if isinstance(value, Tensor):
        return f"tensor {digest({'': value})[:16]}"
    if is_dataclass(value) and not isinstance(value, type):
        inside = {field.name: said(getattr(value, field.name)) for field in fields(value)}
        return {"class": _qualified(type(value)), **{key: one for key, one in inside.items() if one is not None}}
    return function(value) if callable(value) else _qualified(type(value))


def function(given: Callable[..., Any]) -> str:
    """Return what a function is called, and a digest of what it does."""
    if isinstance(given, Named):
        return given.name
    if isinstance(given, functools.partial):
        more = [said(given.args), said(given.keywords)]
        return f"partial({function(given.func)}, {more})"
    if isinstance(given, nn.Module):
        plain = {name: said(value) for name, value in vars(given).items() if not name.startswith("_")}
        return f"{given} {plain} {digest(given.state_dict())[:16]}"
    name = _qualified(given if hasattr(given, "__qualname__") else type(given))
    if name.startswith(("torch.", "builtins.")):
        return name
    return f"{name} {_source(given)}"


def _source(given: Any) -> str:
    """Return a digest of a function's source, and of the values that it closes over."""
    code = getattr(given, "__code__", None)
    held = [cell.cell_contents for cell in getattr(given, "__closure__", None) or ()]
    held += [*(getattr(given, "__defaults__", None) or ()), *getattr(given, "__dict__", {}).values()]
    try:
        if code is not None and code.co_name == "<lambda>":
            raise OSError  # its source would be the whole statement it stands in
        text = inspect.getsource(given if code is not None or isinstance(given, type) else type(given))
    except (OSError, TypeError):  # or it was typed at a prompt
        text = "" if code is None else _code(code)
    plain = [said(one) for one in held if not callable(one)]
    return hashlib.sha256(f"{text}{plain}".encode()).hexdigest()[:16]


def _code(code: CodeType) -> str:
    inner = [_code(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {inner} {code.co_names}"


def _qualified(given: Any, dot: str = ".") -> str:
    return f"{given.__module__}{dot}{given.__qualname__}"
