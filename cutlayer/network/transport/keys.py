"""Key files: written atomically, readable by their owner alone, and refused if others may read them.

While a certificate is renewed, its `key.pem` holds the new key and the old one. So the key of the current certificate
is always there, even if the power fails between two writes. A reader takes the key that matches.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from cutlayer.core import files
from cutlayer.errors import AuthError

MODES = os.name == "posix"  # Windows has no permission bits
OTHERS = 0o077
BLOCK = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.+?-----END [A-Z ]*PRIVATE KEY-----\s*", re.DOTALL)


def read(path: Path) -> bytes:
    """Read a key file; refuse it if others may read it too."""
    with path.open("rb") as file:
        if MODES:
            _private(path, os.fstat(file.fileno()))
        return file.read()


def write(path: Path, content: bytes) -> Path:
    """Write a file atomically; a key file has mode 0600 from the moment it is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = path.suffix == ".key" or path.name == "key.pem"
    aside = path.with_name(f".{path.name}.tmp")
    aside.unlink(missing_ok=True)  # left by a writer that was killed
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(aside, flags, 0o600 if secret else 0o644), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    files.move(aside, path)
    files.sync(path.parent)
    return path


def replace(folder: Path, key: bytes, cert: bytes) -> list[Path]:
    """Replace a key and its certificate; at every moment, the key of the current certificate is there."""
    secret, shown = folder / "key.pem", folder / "cert.pem"
    before = read(secret) if secret.exists() else b""  # it may have been moved away
    write(secret, key + before)
    write(shown, cert)
    there = x509.load_pem_x509_certificate(shown.read_bytes())
    return [write(secret, fitting(read(secret), there) or key), shown]


def fitting(keys: bytes, cert: x509.Certificate) -> bytes | None:
    """Return the key of this certificate from a file of keys, or None."""
    for key in BLOCK.findall(keys) or [keys]:
        if serialization.load_pem_private_key(key, None).public_key() == cert.public_key():
            return bytes(key)
    return None


def _private(path: Path, about: os.stat_result) -> None:
    mode, us = stat.S_IMODE(about.st_mode), os.geteuid()
    if not mode & OTHERS or about.st_uid not in (us, 0):
        return
    mend = f"chmod 600 {shlex.quote(str(path))}"
    if about.st_uid != us:  # root owns it: with mode 0600 we could not read it
        mend = f"chown {us} {shlex.quote(str(path))}; {mend}"
    raise AuthError(f"{path}: a key that others may read, mode = {mode:04o}: expected 0600; `{mend}`")
