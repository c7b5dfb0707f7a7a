"""The config of a run: typed, strict, written as TOML. Every field is also a flag of the command line.

A part (scheme, update, optimizer, partition, model) is a table with a `name` and its parameters:

    [scheme]
    name = "smofi"
    alpha = -0.1
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator

from cutlayer.core.autocast import Autocast, check_autocast
from cutlayer.core.files import as_path, reached
from cutlayer.errors import ContractError, CutlayerError, unknown
from cutlayer.registry import (
    LOCALS,
    LR_SCHEDULES,
    MODELS,
    OPTIMIZERS,
    OWN,
    PARTITIONS,
    PEFTS,
    PROFILES,
    SCHEMES,
    TASKS,
    UPDATES,
    Part,
    Table,
    own,
)
from cutlayer.registry.part import check

Spec = dict[str, Any]
TABLES: dict[str, Table[Part]] = {
    "scheme": SCHEMES,
    "local": LOCALS,
    "update": UPDATES,
    "optimizer": OPTIMIZERS,
    "server_optimizer": OPTIMIZERS,
    "lr_schedule": LR_SCHEDULES,
    "partition": PARTITIONS,
    "model": MODELS,
    "peft": PEFTS,
}


class Config(BaseModel):
    """One training run."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    task: str = Field("digits", description="data set")
    model: Spec = Field({"name": "cnn"}, description="model")
    peft: Spec | None = Field(
        None, description="adapters on a model of transformers (--model hf:NAME_OR_PATH); these alone are trained"
    )
    cut: int | str | tuple[int | str, int | str] = Field(
        0, description="the client's last block, by number or name, or LO HI: redrawn every round"
    )
    scheme: Spec = Field({"name": "smofi"}, description="what the server does with the smashed data")
    local: Spec | None = Field(None, description="what clients and server add to the plain gradient")
    clip: float | None = Field(
        None, gt=0, description="the largest norm of a gradient, on each half, before weight decay and momentum"
    )
    update: Spec = Field({"name": "fedavg"}, description="what happens to the mean of the halves")
    optimizer: Spec = Field({"name": "sgd"}, description="optimizer, on both sides unless --server-optimizer is given")
    server_optimizer: Spec | None = Field(None, description="the server's optimizer")
    lr_schedule: Spec | None = Field(None, description="a factor on both learning rates, by round and step")
    partition: Spec = Field({"name": "dirichlet"}, description="who holds which rows")
    clients: int | None = Field(None, ge=1, description="number of clients (default: 30; natural ones: all there are)")
    protocol: Literal["smofi", "cyclesl"] = Field(
        "smofi",
        description="smofi: epochs, optimizers start every round with empty memory, one test set; "
        "cyclesl: one batch per client and round, memory lives on, each client is tested on rows of its own",
    )
    holdout: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="share of a client's rows it is tested on: cyclesl, and tasks without test rows",
    )
    validation: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the training rows that is set aside and tested on instead of the test rows, for tuning",
    )
    rounds: int = Field(10, description="communication rounds, at least 1")
    participation: int | float = Field(1.0, description="clients per round: a rate up to 1 (0.2), or a number (6)")
    batch_size: int = Field(32, description="samples per batch, at least 1")
    accumulate: int = Field(1, description="batches per optimizer step, whose gradients are averaged, at least 1")
    local_epochs: int = Field(5, description="passes over a client's data per round, at least 1")
    local_steps: int | None = Field(None, description="steps per round instead of epochs, at least 1")
    last_batch: Literal["drop", "keep"] = Field("drop", description="what to do with an incomplete batch")
    small_client: Literal["skip", "one_batch"] | None = Field(
        None, description="a client with less than one batch (default: skip; in smofi with --local-steps one_batch)"
    )
    data: str | None = Field(
        None,
        description="your own data: a folder of images by class (or by client and class), a .npz or a .parquet file; "
        "a task of its own",
    )
    data_test: str | None = Field(None, description="your own test rows, of the same kind (default: --holdout)")
    x_column: str = Field("x", description="your own data: the inputs' array or column; several columns: a,b,c")
    y_column: str = Field("y", description="your own data: the labels' array or column")
    owner_column: str | None = Field(None, description="your own data: the column that says whose a row is")
    tokens: int | None = Field(
        None,
        ge=2,
        description="your own data are text: learn to predict it, in rows of so many tokens of an hf: model",
    )
    layout: Literal["auto", "class", "client"] = Field("auto", description="your own folder: by class, or by client")
    image_size: int | None = Field(None, ge=1, description="your own images: resized to this many pixels square")
    augment: bool = Field(False, description="shift and mirror training images at random, where the task does that")
    labels: Literal["send", "stay"] = Field(
        "send",
        description="send: with the smashed data; stay: the last block is the client's too, and labels and loss never "
        "leave it (the U-shape)",
    )
    noise: float = Field(0.0, description="Gaussian noise on the smashed data, relative to its norm, at least 0")
    calibrate: float = Field(0.0, ge=0, description="tau: add tau*log(a client's label frequencies) to its logits")
    kept_memory: float = Field(2048, description="megabytes of what clients keep that stay in memory", ge=0)
    profile: str = Field(
        "alike",
        description="the clients' machines, for simulated seconds and for schemes that regulate batch sizes by them",
    )
    kappa: float = Field(100.0, gt=0, description="simulated seconds: the server is so many times as fast as a client")
    count_sync: bool = Field(False, description="simulated seconds: count the fronts' way down and up")
    sequential: Literal["strict", "paper_like"] = Field(
        "strict", description="simulated seconds of SFLV2: clients strictly in turn, or only the server's work"
    )
    evaluate_every: int = Field(1, description="rounds between evaluations, at least 1")
    detail: bool = Field(
        False, description="write what each round was for each client (loss, drift, cosine, fault) to detail.jsonl"
    )
    target: float | None = Field(None, description="stop once the test accuracy is at least this, above 0 and up to 1")
    seed: int = Field(0, description="seed of everything random")
    init: str | None = Field(None, description="warm start: a model.safetensors to begin from")
    train_rows: int | None = Field(None, description="use this many of the training rows, drawn at random, at least 1")
    data_dir: str | None = Field(None, description="folder of data sets (default: the variable CUTLAYER_DATA)")
    checkpoint_every: int = Field(1, ge=1, description="rounds between checkpoints")
    backend: Literal["auto", "loop", "stacked"] = Field(
        "auto",
        description="how clients are computed: loop, each by itself; stacked, those of a step in one graph (small "
        "models, and on a GPU); auto: by a fixed rule on model and device",
    )
    stack: int | None = Field(
        None, ge=1, description="clients in one graph with stacked (default: 10; on a GPU, what its free memory allows)"
    )
    ranks: Literal["ordered", "fast"] = Field(
        "ordered",
        description="under torchrun, how ranks add up: ordered, the bits of one process; fast, up to rounding",
    )
    memory_limit: float | None = Field(
        None,
        gt=0,
        description="MiB for a round's weights, gradients and activations, and for a test: stacks are made smaller "
        "first, or clients train in groups where the scheme allows it, and fewer threads compute; what still cannot "
        "fit is refused at once",
    )
    threads: int | None = Field(
        None, description="clients computed side by side, at least 1 (default: one per core); on a GPU it must be 1"
    )
    torch_threads: int = Field(
        1,
        ge=1,
        description="threads inside one operation, for schemes with one client at a time; --threads is 1 then; on a "
        "GPU it must be 1",
    )
    autocast: Autocast | None = Field(
        None,
        description="forward passes in this type where torch says so; weights and gradients keep the model's. float16 "
        "is refused: it needs scaled losses, since small gradients are 0 in it",
    )
    compile: bool = Field(
        False, description="compile the halves by torch.compile (slow first steps; needs a C++ compiler)"
    )
    device: str = Field("cpu", description="torch device: cpu, cuda, cuda:1, mps, ..., or auto: the one there is")
    data_on_device: Literal["auto", "yes", "no"] = Field(
        "auto", description="keep the rows on the GPU; auto: if they take at most a quarter of its free memory"
    )

    @field_validator("task", "profile")
    @classmethod
    def _known(cls, name: str, info: Any) -> str:
        valid = TASKS if info.field_name == "task" else PROFILES
        if name not in valid:
            raise unknown(info.field_name, name, valid)
        return name

    _safe = field_validator("autocast", mode="before")(check_autocast)

    @field_validator("data", "data_test", "data_dir", "init")
    @classmethod
    def _path(cls, given: str | None, info: Any) -> str | None:
        if given is not None:
            as_path(info.field_name, given)
        return given

    @field_validator(*TABLES, mode="before")
    @classmethod
    def _whole_part(cls, given: Any, info: Any) -> Spec | None:
        return None if given is None else complete(info.field_name, given)

    @model_validator(mode="after")
    def _sensible(self) -> Config:
        base = own.is_hf(self.model["name"])
        if not base and (self.peft is not None or self.tokens is not None):
            field, given = ("peft", self.peft) if self.peft is not None else ("tokens", self.tokens)
            raise ContractError(f"{field} = {given}: expected a model of transformers with it, hf:NAME_OR_PATH")
        if self.tokens is not None and self.data is None:
            raise ContractError(f"tokens = {self.tokens}: expected text with it, --data FILE")
        if (self.data is None) == (self.task == OWN):
            raise ContractError(f"task = {self.task!r}, data = {self.data!r}: expected a named task, or data alone")
        from cutlayer.engine.validate import Parts, brought, refuse_senseless  # here: it loads torch

        update, optimizer = self.part("update"), self.part("optimizer")
        parts = Parts(
            self.part("scheme"),
            self.part("local"),
            update,
            brought(update, optimizer),
            brought(update, self.part("server_optimizer") or optimizer),
            self.part("lr_schedule"),
            self.calibrate,
        )
        redrawn = isinstance(self.cut, tuple) and self.cut[0] != self.cut[1]
        refuse_senseless(parts, self.protocol, redrawn, self.labels)
        return self

    def part(self, field: str) -> Any:
        """Build the object that a part's table describes, or None."""
        spec: Spec | None = getattr(self, field)
        if spec is None:
            return None
        return TABLES[field][spec["name"]].build({k: v for k, v in spec.items() if k != "name"})


def complete(field: str, given: str | Mapping[str, Any]) -> Spec:
    """Return a part with every parameter spelled out; check names, types and values."""
    spec, table = _table(field, given), TABLES[field]
    name = spec.pop("name", None)
    if name is None:
        raise ContractError(f"{field} = {given!r}: parameters without a name; expected a name of {', '.join(table)}")
    if name not in table:
        raise unknown(field, name, table)
    part = table[name]
    valid = part.takes
    for key in spec:
        if key not in valid:
            raise unknown(f"parameter of {field} {name!r}", key, valid)
    checked = _adapter(field, part).model_validate(spec)
    values = {key: getattr(checked, key) for key in valid}
    ours = part.about is not None
    if not ours:  # what a text cannot hold is left to the part's own default
        values = {key: value for key, value in values.items() if key in spec or _is_plain(value)}
    if field != "model":
        _try(field, name, part, values)
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}
    return {"name": name, **plain}


def _try(field: str, name: str, part: Part, values: Mapping[str, Any]) -> None:
    """Build a part once, for its own checks."""
    try:
        made = part.build(values)
    except ContractError as error:
        raise ContractError(f"{field}.{error}") from error
    except Exception as error:
        if part.about is not None:
            raise
        raise ContractError(f"{field} = {name!r}: it cannot be made: {type(error).__name__}: {error}") from error
    check(TABLES[field], made, field)


def _is_plain(value: Any) -> bool:
    """Whether TOML can hold a value."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


@cache
def _adapter(field: str, part: Part) -> type[BaseModel]:
    fields: dict[str, Any] = {
        name: (p.annotation, ... if p.default is p.empty else p.default) for name, p in part.signature().items()
    }
    if "decay" in fields:
        fields["decay"] = (float, fields["decay"][1])  # a text cannot hold a function
    how = ConfigDict(extra="forbid", allow_inf_nan=True, arbitrary_types_allowed=True, protected_namespaces=())
    return create_model(f"{field}", __config__=how, **fields)


def paths(values: Mapping[str, Any]) -> list[str]:
    """Return the import paths in config values, nested or not."""
    named = [dict(part).get("name") if isinstance(part, Mapping) else part for part in map(values.get, TABLES)]
    inside = [values.get("base"), *(values.get("methods") or [])]  # of a comparison
    more = [path for one in inside if isinstance(one, Mapping) for path in paths(one)]
    return [name for name in (*named, values.get("task")) if own.is_path(name) and isinstance(name, str)] + more


def parse(values: Mapping[str, Any]) -> Config:
    """Build a config from nested values; an error names the field, the value and what was expected."""
    for key in values:
        if key not in Config.model_fields:
            raise unknown("config key", key, Config.model_fields)
    own.require(paths(values))
    given = {key: value for key, value in values.items() if value is not None}
    if given.get("data") is not None:
        from cutlayer.data.own import by_client, pictures

        given, where = {"task": OWN, **given}, as_path("data", str(given["data"]))
        with reached(f"data = {str(where)!r}"):
            images = pictures(where)
            natural = by_client(where, str(given.get("layout")), given.get("owner_column"))
        given = {"model": "resnet" if images else "mlp", "cut": 1 if images else 0, **given}
        if natural:
            given = {"partition": {"name": "natural", "min_size": 1}, **given}
        if given.get("tokens") is not None:
            given = {"partition": "iid", "x_column": "text", **given}
    task = TASKS.get(str(given.get("task", "digits")))
    names = {field: Config.model_fields[field].default for field in TABLES}
    if task is not None:  # spell out the task's defaults
        given = {**task.defaults, "cut": task.cut, **given}
        names["model"] = {"name": task.model}
    for field in ("model", "scheme", "update", "optimizer", "partition"):
        given[field] = merge(names, {field: given.get(field, {})})[field]
    if "server_optimizer" in given:  # what is not given is as in the client's
        given["server_optimizer"] = merge(
            {"server_optimizer": given["optimizer"]}, {"server_optimizer": given["server_optimizer"]}
        )["server_optimizer"]
    rates = _table("lr_schedule", given["lr_schedule"]) if "lr_schedule" in given else {}
    if rates.get("name") == "cosine" and "rounds" not in rates:
        rounds = given.get("rounds", Config.model_fields["rounds"].default)
        given["lr_schedule"] = {**rates, "rounds": rounds}
    try:
        return Config(**given)
    except ValidationError as error:
        raise ContractError(explain(error)) from error


def explain(error: ValidationError) -> str:
    """Return Pydantic's errors in the form of our own."""
    said = []
    for item in error.errors():
        cause = item.get("ctx", {}).get("error")
        where = ".".join(str(part) for part in item["loc"] if isinstance(part, str | int))
        if isinstance(cause, CutlayerError):
            said.append(str(cause))
        else:
            said.append(f"{where} = {item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}")
    return "; ".join(dict.fromkeys(said))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into a copy of `base`; a part whose name changes loses the parameters of the old name."""
    out = dict(base)
    for key, value in over.items():
        if key in TABLES and value is not None:
            new, old = _table(key, value), _table(key, out.get(key) or {})
            if "name" in new and "name" not in old:  # keep nameless parameters that the part has
                part = TABLES[key].get(new["name"])
                old = {k: v for k, v in old.items() if part is None or k in part.takes}
            elif "name" in new and new["name"] != old["name"]:
                old = {}
            out[key] = {**old, **new}
        else:
            out[key] = value
    return out


def words(spec: Spec) -> str:
    """Return a part as a call: smofi(alpha=-0.1)."""
    return f"{spec['name']}(" + ", ".join(f"{k}={v}" for k, v in spec.items() if k != "name") + ")"


def _table(field: str, given: Any) -> Spec:
    """Return a part as a table, whether it was given as a name or as a table."""
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or not isinstance(table.get("name", ""), str):
        raise ContractError(f"{field} = {given!r}: expected a name, or a table with a name")
    return dict(table)


def dump(config: Config) -> str:
    """Return the config as TOML, parts last."""
    values = {k: v for k, v in config.model_dump().items() if v is not None}
    plain = {k: v for k, v in values.items() if k not in TABLES}
    return tomli_w.dumps({**plain, **{k: values[k] for k in TABLES if k in values}})
