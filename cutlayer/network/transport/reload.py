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
EVERY = 1.0  # seconds: a server checks its files at most this often
DAY = 86400.0
Say = Callable[[str], None]


class Watched:
    """An identity that is read again when its files change. If the new files are wrong, it keeps the old identity and
    says so once.

    It may be used from any thread; `say` is called in the thread that calls `look`. The constructor raises the same
    errors as `identity.read`.
    """

    def __init__(self, folder: Path, name: str, say: Say, every: float = 0.0) -> None:
        self.folder, self.say, self.every = identity.place(folder, name), say, every
        self._seen: Any = self._stamps()
        self.held = identity.read(self.folder)
        self._looked, self._said = time.monotonic(), ""
        self._looking = threading.Lock()

    def look(self) -> bool:
        """Read the files again if they have changed; return whether there is a new identity. It never raises."""
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
        except Exception as error:  # whatever is wrong with the new one, keep the old one
            said = f"{plain(error, 1000)}; the certificate of before stays in use"
            if said != self._said:
                self._said = said
                self._tell(said)
            return False  # `_seen` has not changed, so the next call tries again
        finally:
            self._looking.release()

    def proven(self) -> Identity:
        """Return the identity to dial with; raise an AuthError if it has expired and there is no newer one."""
        self.look()
        identity.prove(self.held)
        return self.held

    def _read(self) -> Identity:
        new = identity.read(self.folder)
        if (new.name, new.serves) != (self.held.name, self.held.serves):
            raise AuthError(f"{self.folder}: a certificate of {new.name!r}: expected one of {self.held.name!r}")
        return new

    def _tell(self, text: str) -> None:
        with contextlib.suppress(Exception):  # in a thread of grpc's, nobody would catch it
            self.say(text)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(self.folder / file) for file in FILES]


def server_credentials(
    where: Path | Identity, say: Say, connected: Callable[[], None] = lambda: None
) -> grpc.ServerCredentials:
    """Return a server's credentials for one port; they follow the files in its folder at each new connection.

    Open streams keep the certificates they began with. `say` and `connected` are called in threads of grpc's, the
    latter at each new connection. An identity that was not read from a folder never changes.
    """
    if isinstance(where, Identity) and where.folder is None:
        return grpc.ssl_server_credentials([(where.key, where.cert)], where.ca, require_client_auth=True)
    folder = where.folder if isinstance(where, Identity) else where
    assert folder is not None
    watched = Watched(folder, "server", say, EVERY)
    expect(watched.held.serves, "certs", str(folder), "the server's certificate, not a client's")

    def fetch() -> Any:
        connected()
        return _shown(watched.held) if watched.look() else None

    return grpc.dynamic_ssl_server_credentials(_shown(watched.held), fetch, require_client_authentication=True)


class Reminders:
    """Passes on warnings, at most one a day about each name."""

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
