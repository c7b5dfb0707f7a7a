"""The shorter types that forward passes may compute in."""

from __future__ import annotations

from typing import Any, Literal

from cutlayer.errors import expect

Autocast = Literal["bfloat16"]
WHY_NOT = "float16 needs scaled losses, since small gradients are 0 in it; bfloat16 has the range of float32"


def check_autocast(given: Any) -> Any:
    """Return the type that was asked for; refuse another one than bfloat16, and say why."""
    expect(given in (None, "bfloat16"), "autocast", given, f"'bfloat16', or None ({WHY_NOT})")
    return given
