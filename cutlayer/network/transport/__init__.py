"""Bytes between machines: frames, streams, and the identity of both ends. Nothing here depends on an algorithm."""

import os
import socket
from typing import Literal

from cutlayer.errors import ContractError

Code = Literal["raw", "float16", "int8"]
"""How the numbers of activations and gradients are written: as they are, or shorter, with loss of precision."""

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # we report errors ourselves
# on Windows, SO_REUSEADDR would take the port from the program that listens on it
EXCLUSIVE = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)


def plain(text: object, most: int = 300) -> str:
    """Text from another machine, shortened and made safe to print on a terminal and to write to a journal."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:most])


def free(field: str, place: str) -> None:
    """Refuse a HOST:PORT that this machine cannot listen on."""
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
