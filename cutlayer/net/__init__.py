"""Bytes between machines: frames, streams and who is at their ends. It knows no algorithm."""

import os
from typing import Literal

Code = Literal["raw", "float16", "int8"]
"""How the numbers of activations and gradients are written: as they are, or shorter, at a loss."""

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said in our own words
