"""Code from outside this package: modules that a user names by a flag, in a config of their own, or in Python.

A name with a colon, "my_nets:build", is an import path: a module, and a class or function in it. ("hf:NAME" is none: it
names files of weights, which hold no code.) A config in a run
directory may have come from somebody else, so its import paths alone import nothing: the person who runs the program
must have named the module (`allow`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from cutlayer.errors import ContractError

COLON = ":"
HF = "hf:"  # before the name or path of a model of Hugging Face's transformers
_named: set[str] = set()  # modules that the person who runs this process has named


def is_path(name: object) -> bool:
    """Whether a name is an import path."""
    return isinstance(name, str) and COLON in name and not is_hf(name)


def is_hf(name: object) -> bool:
    """Whether a name is that of a model of transformers."""
    return isinstance(name, str) and name.startswith(HF)


def allow(name: str) -> None:
    """Note that a person named this module, or a part in it by import path; modules inside it count as named too."""
    _named.add(name.partition(COLON)[0])


def allowed() -> list[str]:
    """Return the modules that were named, for a process that works for this one."""
    return sorted(_named)


def load(name: str) -> None:
    """Import a module that a person named, for what it registers."""
    allow(name)
    _module(f"import = {name!r}", name)


def require(paths: Iterable[str]) -> None:
    """Refuse import paths to modules that nobody named."""
    wanted = dict.fromkeys(path.partition(COLON)[0] for path in paths)
    missing = [module for module in wanted if not _inside(module)]
    if missing:
        flags = " ".join(f"--import {module}" for module in missing)
        raise ContractError(
            f"{', '.join(missing)}: code from outside cutlayer, which a config file alone does not import; expected "
            f"{flags} too, if you trust it"
        )


def found(field: str, path: str) -> Callable[..., Any]:
    """Return the class or function that an import path names; refuse a module that nobody named."""
    module, _, name = path.partition(COLON)
    where = f"{field} = {path!r}"
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ContractError(f"{where}: expected MODULE:NAME, such as my_nets:build")
    require([path])
    made: Any = _module(where, module)
    for part in name.split("."):
        made = getattr(made, part, None)
    if not callable(made):
        raise ContractError(f"{where}: no class or function {name!r} in module {module}")
    home = str(getattr(made, "__module__", ""))
    if not _inside(home):  # otherwise a path could lead through a module to whatever that imports
        raise ContractError(f"{where}: it is defined in {home or 'no module'}; expected one that {module} defines")
    return cast(Callable[..., Any], made)


def _inside(module: str) -> bool:
    """Whether a module, or one of the packages that hold it, was named."""
    parts = module.split(".")
    return any(".".join(parts[:n]) in _named for n in range(1, len(parts) + 1))


def _module(where: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: a console script alone would not look in the current folder
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything
        raise ContractError(f"{where}: cannot import {name}: {type(error).__name__}: {error}") from error


def imported(path: str) -> Callable[..., Any]:
    """Return what a path of this package, or of an installed one, names."""
    module, _, name = path.partition(COLON)
    made: Any = importlib.import_module(module)
    for part in name.split("."):
        made = getattr(made, part)
    return cast(Callable[..., Any], made)
