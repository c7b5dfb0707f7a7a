"""Certificates that change while a server or a client runs: the new ones are used from the next connection on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from cutlayer.errors import AuthError, expect
from cutlayer.network.transport import identity, plain
from cutlayer.network.transport.identity import Identity

FILES = ("key.pem", "cert.pem", "ca.pem")
EVERY = 1.0  # seconds: a server looks at its files no more often, however many connections come
DAY = 86400.0
Say = Callable[[str], None]


class Watched:
    """An identity that follows its files. While those cannot be used it stays what it was, and that is said once.

    From any thread; `say` is called in the one that looks. The first reading raises what `identity.read` does.
    """

    def __init__(self, folder: Path, name: str, say: Say, every: float = 0.0) -> None:
        self.folder, self.say, self.every = identity.place(folder, name), say, every
        self._seen: Any = self._stamps()
        self.held = identity.read(self.folder)
        self._looked, self._said = time.monotonic(), ""
        self._looking = threading.Lock()

    def look(self) -> bool:
        """Read the files again if they have changed; whether there is a new identity. It never raises."""
        if time.monotonic() - self._looked < self.every or not self._looking.acquire(blocking=False):
            return False
        try:
            self._looked = time.monotonic()
            stamps = self._stamps()
            new = self.held if stamps == self._seen else self._read()
            self._seen, self._said = stamps, ""
            if new == self.held:
                return False
            self.held = new
            self._tell(f"{self.folder}: a new certificate, valid until {identity.ends(new):%Y-%m-%d}")
            return True
        except Exception as error:  # whatever is wrong with the new one, the old one is what it was
            said = f"{plain(error, 1000)}; the certificate of before stays in use"
            if said != self._said:
                self._said = said
                self._tell(said)
            return False  # `_seen` is as before: it is read again next time
        finally:
            self._looking.release()

    def proven(self) -> Identity:
        """What to dial with now; an AuthError if that has expired, and nothing better is there."""
        self.look()
        identity.prove(self.held)
        return self.held

    def _read(self) -> Identity:
        new = identity.read(self.folder)
        if (new.name, new.serves) != (self.held.name, self.held.serves):
            raise AuthError(f"{self.folder}: a certificate of {new.name!r}: expected one of {self.held.name!r}")
        return new

    def _tell(self, text: str) -> None:
        with contextlib.suppress(Exception):  # a thread of grpc's has nobody to raise it to
            self.say(text)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(self.folder / file) for file in FILES]


def server_credentials(where: Path | Identity, say: Say) -> grpc.ServerCredentials:
    """What a server shows, and whom it believes, as its folder says at each new connection; for one port.

    Streams that stand live on with what they began with. `say` is called in threads of grpc's. An identity that was not
    read from a folder stays as it is.
    """
    if isinstance(where, Identity) and where.folder is None:
        return grpc.ssl_server_credentials([(where.key, where.cert)], where.ca, require_client_auth=True)
    folder = where.folder if isinstance(where, Identity) else where
    assert folder is not None
    watched = Watched(folder, "server", say, EVERY)
    expect(watched.held.serves, "certs", str(folder), "the server's certificate, not a client's")

    def fetch() -> Any:
        return _shown(watched.held) if watched.look() else None

    return grpc.dynamic_ssl_server_credentials(_shown(watched.held), fetch, require_client_authentication=True)


class Reminders:
    """Warnings, each of them once a day for everyone it is about, however often they come."""

    def __init__(self, say: Say, every: float = DAY) -> None:
        self.say, self.every = say, every
        self._last: dict[str, float] = {}

    def __call__(self, who: str, warning: str | None) -> None:
        now = time.monotonic()
        if warning is not None and now - self._last.get(who, -self.every) >= self.every:
            self._last[who] = now
            self.say(warning)


def _shown(who: Identity) -> Any:
    return grpc.ssl_server_certificate_configuration([(who.key, who.cert)], who.ca)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino
