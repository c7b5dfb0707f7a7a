"""Build a client's model and rows from the server's Welcome and a path to data, for `cutlayer join`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional

from cutlayer.core.files import as_path, reached
from cutlayer.data import cache
from cutlayer.data.own import Own, seen_as
from cutlayer.data.read.text_rows import Text
from cutlayer.data.rows import Bundle, StoredRows
from cutlayer.data.source import Source
from cutlayer.data.tasks import SOURCES
from cutlayer.data.transform import Pixels, decode, encode
from cutlayer.data.views import View
from cutlayer.engine.assemble import in_blocks
from cutlayer.errors import ContractError, StoreError, expect
from cutlayer.experiment.config import complete, explain
from cutlayer.experiment.model_files import PEFT, build_model, with_adapters
from cutlayer.network.protocol.handshake import Welcome
from cutlayer.network.protocol.settings import Limits
from cutlayer.network.transport import plain
from cutlayer.network.transport.frames import DTYPES
from cutlayer.nn.language import next_token
from cutlayer.registry import own

DEEPEST = 1000  # blocks of the server's model; even without memory for weights, building them takes time


@dataclass(frozen=True)
class ClientData:
    """Where this client's rows are, and which arrays or columns hold inputs and labels. `own`: the model, where this
    client names it instead of the server."""

    data: Path
    limits: Limits
    x: str = "x"
    y: str = "y"
    own: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        with reached(f"data = {str(self.data)!r}"):
            there = as_path("data", self.data).exists()
        if not there:
            raise StoreError(f"data = {str(self.data)!r}: no such folder or file")

    def __call__(self, welcome: Welcome) -> tuple[nn.Module, Source]:
        self._named(welcome)
        rows = self.rows(welcome)
        return in_blocks(self.model(welcome), [rows]), rows

    def _named(self, welcome: Welcome) -> Mapping[str, Any]:
        """Return the table of the model; refuse one that only the server names, but that this client must have."""
        named = self.own or welcome.model
        if named is None:
            raise ContractError(
                "the server trains a model of its own: expected the same one here, with cl.join(model=)"
            )
        if self.own is None and (own.is_path(named.get("name")) or own.is_hf(named.get("name"))):
            what = "a base that is not sent" if own.is_hf(named["name"]) else "code of its own"
            raise ContractError(
                f"the server trains {plain(named['name'])}, {what}: expected the same model here, with --model"
            )
        return named

    def model(self, welcome: Welcome) -> nn.Module:
        """Build the server's model by name; check its size before memory is allocated for the weights."""
        named = self._named(welcome)
        if own.is_hf(named.get("name")):
            return self._base(named, welcome)
        try:
            spec = complete("model", named)
        except ValidationError as error:
            raise ContractError(f"the server's model = {welcome.model}: {explain(error)}") from error
        if welcome.classes is None:
            raise ContractError("the server sends no number of classes, which a model given by name needs")
        depth = spec.get("depth", 0)
        expect(depth <= DEEPEST, "the server's model: depth", depth, f"at most {DEEPEST}")
        with torch.device("meta"):
            size = sum(p.numel() for p in build_model(spec, welcome.shape, welcome.classes, 0).parameters())
        most = self.limits.parameters
        expect(
            size <= most, "the server's model", f"{size:,} parameters", f"at most {most:,}, as --limit-parameters says"
        )
        return build_model(spec, welcome.shape, welcome.classes, 0)

    def _base(self, named: Mapping[str, Any], welcome: Welcome) -> nn.Module:
        """Build the base that this client has, with adapters as the server has them."""
        theirs = (welcome.model or {}).get(PEFT)
        try:
            spec, peft = complete("model", named), None if theirs is None else complete("peft", theirs)
        except ValidationError as error:
            raise ContractError(f"the server's adapters = {theirs}: {explain(error)}") from error
        return build_model(with_adapters(spec, peft), welcome.shape, self._text(welcome).vocabulary, 0)

    def _text(self, welcome: Welcome) -> Text:
        """How this client's text becomes rows: by the tokenizer of its own base, as long as the server's."""
        assert self.own is not None
        return Text(str(self.own["name"]).removeprefix(own.HF), welcome.shape[0])

    def _is_text(self, welcome: Welcome) -> bool:
        return self.own is not None and own.is_hf(self.own.get("name")) and len(welcome.shape) == 1

    def rows(self, welcome: Welcome) -> Source:
        """Return the rows as the server's model sees them: of its shape, with its classes, through its transform."""
        bundle = self._read(welcome)
        rows, names = bundle.train, tuple(bundle.class_names)
        shape = tuple(rows.x.shape[1:])
        expect(len(rows) > 0, "data", str(self.data), "at least one row")
        expect(shape == welcome.shape, "data: rows of shape", shape, f"the server's, {welcome.shape}")
        rows = _named(rows, names, welcome)
        seen, mine = decode(welcome.seen) if welcome.seen else seen_as(rows), seen_as(rows)
        kinds = [(encode(one) or {}).get("kind") for one in (mine, seen)]
        expect(kinds[0] == kinds[1], "data: rows of", f"{rows.x.dtype} ({kinds[0]})", f"{kinds[1]} as at the server")
        if isinstance(seen, Pixels):
            channels = (1, welcome.shape[0])
            expect(len(seen.mean) in channels, "the server's mean: numbers", len(seen.mean), "one, or one by channel")
        return View(rows, np.arange(len(rows)), seen, DTYPES[welcome.dtype], "data")

    def _read(self, welcome: Welcome) -> Bundle:
        if self._is_text(welcome):
            return Own(str(self.data), x="text" if self.x == "x" else self.x, text=self._text(welcome)).read(self.data)
        task = SOURCES.get(welcome.task or "")
        if task is not None and task.forms and self.data.is_dir():
            found = cache.find(welcome.task or "", task.forms, self.data)
            if found is not None:
                return found
        image = len(welcome.shape) == 3 and welcome.shape[1] == welcome.shape[2]
        own = Own(str(self.data), x=self.x, y=self.y, size=welcome.shape[1] if image else None)
        return own.read(self.data)


def loss(out: Tensor, y: Tensor) -> Tensor:
    """The loss that a client computes where labels stay: of classes, or of the tokens of a text."""
    return next_token(out, y) if out.ndim == 3 else functional.cross_entropy(out, y)


def _named(rows: StoredRows, names: tuple[str, ...], welcome: Welcome) -> StoredRows:
    """Return the rows with the server's class numbers, where classes have names."""
    theirs = welcome.class_names
    if not names or names == theirs:
        return rows
    if theirs:
        for name in names:
            expect(name in theirs, "data: class", name, f"one of the server's {', '.join(theirs[:20])}")
        codes = np.array([theirs.index(name) for name in names], dtype=np.int64)
        return StoredRows(rows.x, codes[rows.y], rows.owners, rows.owner_names)
    expect(
        len(names) == welcome.classes,
        "data: classes",
        f"{len(names)} by name",
        f"all {welcome.classes}, since the server numbers its classes and has no names for them",
    )
    return rows
