"""Bytes between machines: frames, streams and who is at their ends. It knows no algorithm."""

import os
import socket
from typing import Literal

from cutlayer.errors import ContractError

Code = Literal["raw", "float16", "int8"]
"""How the numbers of activations and gradients are written: as they are, or shorter, at a loss."""

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said in our own words
EXCLUSIVE = getattr(
    socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR
)  # on Windows the latter takes a port from its owner


def plain(text: object, most: int = 300) -> str:
    """Words that came from another machine, fit for a terminal and a journal."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:most])


def free(field: str, place: str) -> None:
    """Refuse a HOST:PORT that nobody here could listen on."""
    host, _, port = place.rpartition(":")
    wrong: OSError | None = None
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as one:
                one.setsockopt(socket.SOL_SOCKET, EXCLUSIVE, 1)
                try:
                    one.bind(address)
                    return
                except OSError as error:
                    wrong = error
    except OSError as error:
        wrong = error
    why = wrong.strerror if wrong is not None else "no such host"
    raise ContractError(f"{field} = {place!r}: {why}; expected HOST:PORT of this machine that is free") from wrong
