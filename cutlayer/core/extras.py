"""The packages that the optional extras of cutlayer need."""

from __future__ import annotations

import importlib.util

from cutlayer.errors import ContractError

EXTRAS = {
    "hf": ("transformers", "peft", "datasets"),
    "net": ("grpc", "msgspec", "cryptography", "zstandard"),
    "ui": ("starlette", "uvicorn"),
    "metrics": ("prometheus_client",),
    "pandas": ("pandas",),
    "tb": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}


def needs(extra: str) -> None:
    """Raise an error that names the packages of an extra that are not installed."""
    missing = [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]
    if missing:
        raise ContractError(f"{', '.join(missing)}: not installed; expected `pip install cutlayer[{extra}]`")
