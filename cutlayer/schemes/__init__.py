"""The schemes by name."""

from __future__ import annotations

from cutlayer.schemes.base import Scheme
from cutlayer.schemes.cycled import CyclePSL, CycleSFL, CycleSGLR, CycleSSL
from cutlayer.schemes.merged import MergeSFL
from cutlayer.schemes.shared import SFLV2, SSL
from cutlayer.schemes.smofi import SMoFi
from cutlayer.schemes.surrogates import PSL, SFLV1, SGLR

__all__ = [
    "PSL",
    "SFLV1",
    "SFLV2",
    "SGLR",
    "SSL",
    "CyclePSL",
    "CycleSFL",
    "CycleSGLR",
    "CycleSSL",
    "MergeSFL",
    "SMoFi",
    "Scheme",
]
