"""What an optional part of cutlayer needs, said before it is missed."""

from __future__ import annotations

import importlib.util

from cutlayer.errors import ContractError

EXTRAS = {
    "net": ("grpc", "msgspec", "cryptography", "zstandard"),
    "ui": ("starlette", "uvicorn"),
    "metrics": ("prometheus_client",),
}


def needs(extra: str) -> None:
    """Refuse to go on without the packages of an extra."""
    missing = [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]
    if missing:
        raise ContractError(f"{', '.join(missing)}: not installed; expected `pip install cutlayer[{extra}]`")
