"""The schemes by name."""

from __future__ import annotations

from cutlayer.schemes.seam import Scheme
from cutlayer.schemes.shared import SFLV2
from cutlayer.schemes.smofi import SMoFi
from cutlayer.schemes.surrogates import SFLV1

__all__ = ["SFLV1", "SFLV2", "SMoFi", "Scheme"]
