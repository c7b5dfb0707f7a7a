"""Files of weights: what a run saves at its end, and how it is loaded again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from cutlayer.core import sealed
from cutlayer.core.files import as_path
from cutlayer.core.randomness import EVERYBODY, OwnRandomness, address
from cutlayer.engine.run import Run
from cutlayer.errors import ContractError, StoreError, expect
from cutlayer.experiment.description import PROGRAM
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import halves, unwrapped
from cutlayer.registry import MODELS


@dataclass(frozen=True)
class Saved:
    """What files of weights say of the model: its table in the config, the shape of its inputs, its classes."""

    model: dict[str, Any]
    shape: Sequence[int]
    classes: int

    def words(self, cut: int, part: str) -> dict[str, str]:
        about = {"model": self.model, "shape": list(self.shape), "classes": self.classes, "cut": cut}
        return {"cutlayer": json.dumps({**about, "part": part})}


def build_model(spec: dict[str, Any], shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build a model by name, with weights drawn at the seed's address."""
    arguments = {key: value for key, value in spec.items() if key != "name"}
    part = MODELS[spec["name"]]
    known = (RuntimeError, ValueError, TypeError, ZeroDivisionError) if part.about is not None else (Exception,)
    with OwnRandomness(address(seed, 0, EVERYBODY, "weights")):
        try:
            model = part.build(arguments, {"shape": shape, "classes": classes})
        except known as error:
            raise ContractError(f"model = {spec}: it cannot be built for inputs of shape {shape}: {error}") from error
    expect(isinstance(model, nn.Module), "model", spec["name"], "a class or function that makes a torch.nn.Module")
    return cast(nn.Module, model)


def save(out: Path, run: Run, saved: Saved) -> str:
    """Write the model and its halves, and the fronts that clients keep; return a digest of the weights."""
    model, cut, stay = run.in_blocks(), run.setup.cuts[0], run.setup.layout.tail > 0
    front, back = halves(model, cut)
    kept = run.setup.traits.carry == "keep" and run.setup.cohort.remote
    parts: dict[str, tuple[nn.Module, str]] = {
        "model": (unwrapped(model), "model"),
        "front": (front, "front"),
        "back": (back, "back"),
    }
    if kept:  # the clients have the fronts and, where labels stay, the last blocks
        parts = {"back": (back[:-1], "middle") if stay else (back, "back")}
    for file, (module, part) in parts.items():
        sealed.save_model(out / f"{file}.safetensors", module.state_dict(), saved.words(cut, part))
    _save_fronts(out, run, saved)
    return sealed.digest(next(iter(parts.values()))[0].state_dict())


def _save_fronts(out: Path, run: Run, saved: Saved) -> None:
    """Save the front of every client that keeps one."""
    own = [j for j in sorted(run.state.participations) if run.state.front(j) is not None]
    cut, stay = run.setup.cuts[0], run.setup.layout.tail > 0
    words = saved.words(cut, "ends" if stay else "front")
    if own:
        (out / "fronts").mkdir(exist_ok=True)
    for j in own:
        front, back = halves(run.in_blocks(j), cut)
        held = nn.Sequential(*front, back[-1]) if stay else front
        sealed.save_model(out / "fronts" / f"client-{j}.safetensors", held.state_dict(), words)


def load(path: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None) -> nn.Module:
    """Load a model, front or back that a run saved (`model.safetensors`, `front.safetensors`, `back.safetensors`, or a
    client's own `fronts/client-3.safetensors`), ready for inference: `back(front(x))` is `model(x)`.

    model   the whole model, or a function that makes it, where it is not one that cutlayer can build by name; for a
            part of it, in blocks (`cl.blocks`)
    """
    try:
        tensors, words = sealed.unpack(as_path("path", path).read_bytes(), older=True)
        if "cutlayer" not in words:
            raise StoreError("not written by cutlayer: it does not say which model it holds")
        about = sealed.parsed(words["cutlayer"])
        whole = _built(about) if model is None else twin(model) if isinstance(model, nn.Module) else model()
        module = _part(whole, about)
        module.load_state_dict(tensors)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, StoreError) as error:
        raise StoreError(f"{path}: cannot be loaded: {error}") from error
    return module.eval()


def _part(model: nn.Module, about: dict[str, Any]) -> nn.Module:
    if about["part"] == "model":
        return unwrapped(model)
    front, back = halves(model, about["cut"])
    ends = nn.Sequential(*front, back[-1])  # a client's blocks, where labels stay
    return {"front": front, "back": back, "middle": back[:-1], "ends": ends}[about["part"]]


def _built(about: dict[str, Any]) -> nn.Module:
    if about["model"]["name"] == PROGRAM:
        raise StoreError(f"it holds weights of {about['model']['class']}, a model of your own; expected model= too")
    return build_model(about["model"], tuple(about["shape"]), about["classes"], seed=0)


def warm_start(model: nn.Module, path: Path) -> None:
    try:
        model.load_state_dict(load_file(str(path)))
    except (OSError, SafetensorError) as error:
        raise StoreError(f"init = {str(path)!r}: cannot be read: {error}") from error
    except RuntimeError as error:
        raise ContractError(f"init = {str(path)!r}: not the weights of this model: {error}") from error
