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
from cutlayer.hf import adapters
from cutlayer.nn.copies import sharing, twin
from cutlayer.nn.cut import halves, unwrapped
from cutlayer.registry import MODELS, PEFTS

PEFT = "peft"  # the key of the adapters in a model's table


@dataclass(frozen=True)
class Saved:
    """What files of weights say of the model: its table in the config, the shape of its inputs, its classes."""

    model: dict[str, Any]
    shape: Sequence[int]
    classes: int

    def words(self, cut: int, part: str, **more: Any) -> dict[str, str]:
        about = {"model": self.model, "shape": list(self.shape), "classes": self.classes, "cut": cut}
        return {"cutlayer": json.dumps({**about, "part": part, **more})}


def with_adapters(model: dict[str, Any], peft: dict[str, Any] | None) -> dict[str, Any]:
    """Return a model's table in the config and that of its adapters as one."""
    return model if peft is None else {**model, PEFT: peft}


def build_model(spec: dict[str, Any], shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build a model by name, with weights drawn at the seed's address, and adapters if the table has any."""
    arguments = {key: value for key, value in spec.items() if key not in ("name", PEFT)}
    part, peft = MODELS[spec["name"]], dict(spec.get(PEFT) or {})
    known = (RuntimeError, ValueError, TypeError, ZeroDivisionError) if part.about is not None else (Exception,)
    with OwnRandomness(address(seed, 0, EVERYBODY, "weights")):
        try:
            model = part.build(arguments, {"shape": shape, "classes": classes})
        except known as error:
            raise ContractError(f"model = {spec}: it cannot be built for inputs of shape {shape}: {error}") from error
        if peft:
            model = PEFTS[peft.pop("name")].build(peft).wrap(model)
    expect(isinstance(model, nn.Module), "model", spec["name"], "a class or function that makes a torch.nn.Module")
    return cast(nn.Module, model)


def save(out: Path, run: Run, saved: Saved) -> dict[str, Any]:
    """Write the model and its halves, and the fronts that clients keep; return a digest of the weights. Of a model with
    adapters only these are written."""
    model, cut, stay = run.in_blocks(), run.setup.cuts[0], run.setup.layout.tail > 0
    if adapters.has_adapters(unwrapped(model)):
        return _save_adapters(out, run, saved)
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
    return {"sha256": sealed.digest(next(iter(parts.values()))[0].state_dict())}


def _save_adapters(out: Path, run: Run, saved: Saved) -> dict[str, Any]:
    """Save the adapters of the global model, and those of each client that keeps its front."""
    own = [j for j in sorted(run.state.participations) if run.state.front(j) is not None]
    base, cut = adapters.base_of(run.model), run.setup.cuts[0]
    words = saved.words(cut, adapters.FOLDER, base=base)
    sha256 = adapters.save(out / adapters.FOLDER, run.model, words)
    if own:
        (out / "fronts").mkdir(exist_ok=True)
    for j in own:
        adapters.save(out / "fronts" / f"client-{j}", run.personal(j), words)
    return {"sha256": sha256, "base": base}


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
            part of it, in blocks (`cl.blocks`); for a folder of adapters, the base
    """
    try:
        if as_path("path", path).is_dir():
            return _load_adapters(Path(path), model)
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


def _load_adapters(folder: Path, model: nn.Module | Callable[[], nn.Module] | None) -> nn.Module:
    """Return a base with adapters that a run saved."""
    _, words = sealed.unpack((folder / adapters.WEIGHTS).read_bytes(), older=True)
    whole = _built(sealed.parsed(words["cutlayer"])) if model is None else model
    if isinstance(whole, nn.Module):
        whole = twin(whole) if adapters.has_adapters(whole) else sharing(whole)
    return adapters.load(folder, whole if isinstance(whole, nn.Module) else whole())


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
