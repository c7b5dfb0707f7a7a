"""The schemes, and what an author of a new one needs (docs/architecture.md, examples/own_scheme.py).

A scheme is a frozen dataclass with `traits`, which say what the engine must know, and `open`, which begins a round. The
session that `open` returns turns the smashed data of a wave into gradients at the cut, and returns the server halves
at the end. It computes with the `Server` that it is given.
"""

from __future__ import annotations

from cutlayer.clients.messages import Address, CutGrad, Momentum, Smashed
from cutlayer.clients.waves import Wave
from cutlayer.schemes.aligned import Aligned
from cutlayer.schemes.base import Closed, Scheme, Session
from cutlayer.schemes.cycled import CyclePSL, CycleSFL, CycleSGLR, CycleSSL
from cutlayer.schemes.merged import MergeSFL
from cutlayer.schemes.server import Server
from cutlayer.schemes.shared import SFLV2, SSL
from cutlayer.schemes.smofi import SMoFi
from cutlayer.schemes.surrogates import PSL, SFLV1, SGLR
from cutlayer.schemes.traits import Regulator, Traits
from cutlayer.simulation.clock import Timing

__all__ = [
    "PSL",
    "SFLV1",
    "SFLV2",
    "SGLR",
    "SSL",
    "Address",
    "Aligned",
    "Closed",
    "CutGrad",
    "CyclePSL",
    "CycleSFL",
    "CycleSGLR",
    "CycleSSL",
    "MergeSFL",
    "Momentum",
    "Regulator",
    "SMoFi",
    "Scheme",
    "Server",
    "Session",
    "Smashed",
    "Timing",
    "Traits",
    "Wave",
]
