"""Frames gone wrong: real ones with bits flipped, bytes lost or added, headers swapped, words and sizes replaced."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cutlayer.network.transport.frames import DTYPES, LAST, LENGTH, MORE

KINDS = (
    *("Hello", "Welcome", "Refused", "Ready", "Plan", "Smashed", "Features", "FeatureGrad", "CutGrad", "Square"),
    *("Momentum", "Adopt", "Report", "Stop", "Bye", "", "Pickle", "x" * 300),
)
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 2**31, 2**53, 2**63 - 1, 2**64 - 1, -(2**63), 0.0, -1.5, 0.3, 1e308),
    *(math.nan, math.inf, "", "x", "SGD", "../..", "\x00", [], {}, [0] * 9, [[[]]], {"a": {"b": [1]}}, b"\x80\x04."),
    *(msgspec.msgpack.Ext(7, b"abc"), ["float32", [2**31], False, "raw", 1.0], [3, 1, 0, 0], [3, 1, -1, 0]),
)


def split(piece: bytes) -> tuple[bytes, bytes, bytes]:
    """Flag, header and body of a frame in one piece."""
    (size,) = LENGTH.unpack_from(piece, 1)
    return piece[:1], piece[5 : 5 + size], piece[5 + size :]


def whole(head: bytes, body: bytes) -> bytes:
    return LAST + LENGTH.pack(len(head)) + head + body


class Fuzzer:
    """`frames` are real ones, each in one piece. The same seed gives the same frames."""

    def __init__(self, frames: Sequence[bytes], seed: int, kinds: Sequence[str] = KINDS) -> None:
        assert all(frame[:1] == LAST for frame in frames)
        self.frames, self.dice, self.kinds = list(frames), random.Random(seed), kinds
        self.ways: list[Callable[[bytes], bytes]] = [
            self.flipped,
            self.flipped_header,
            self.shortened,
            self.lengthened,
            self.swapped,
            self.noise,
            self.absurd,
            self.reworded,
            self.reworded,
            self.resized,
            self.poisoned,
            self.untouched,
        ]

    def one(self, frame: bytes | None = None) -> tuple[str, bytes]:
        """A way to go wrong, and a piece of a frame that went it."""
        way = self.dice.choice(self.ways)
        return way.__name__, way(self.dice.choice(self.frames) if frame is None else frame)

    def untouched(self, frame: bytes) -> bytes:
        return frame

    def flipped(self, frame: bytes) -> bytes:
        return self._flipped(frame, len(frame))

    def flipped_header(self, frame: bytes) -> bytes:
        return self._flipped(frame, 5 + len(split(frame)[1]))

    def _flipped(self, frame: bytes, end: int) -> bytes:
        changed = bytearray(frame)
        for _ in range(self.dice.choice((1, 1, 2, 8))):
            changed[self.dice.randrange(end)] ^= 1 << self.dice.randrange(8)
        return bytes(changed)

    def shortened(self, frame: bytes) -> bytes:
        start = self.dice.randrange(len(frame))
        end = len(frame) if self.dice.random() < 0.5 else self.dice.randrange(start, len(frame))
        return frame[:start] + frame[end:]

    def lengthened(self, frame: bytes) -> bytes:
        at = self.dice.choice((self.dice.randrange(len(frame)), len(frame)))
        return frame[:at] + self.dice.randbytes(self.dice.choice((1, 4, 16, 300))) + frame[at:]

    def swapped(self, frame: bytes) -> bytes:
        return whole(split(frame)[1], split(self.dice.choice(self.frames))[2])

    def noise(self, frame: bytes) -> bytes:
        flag = self.dice.choice((LAST, LAST, LAST, MORE, b"", b"\x02"))
        return flag + self.dice.randbytes(self.dice.choice((0, 3, 4, 20, 200)))

    def absurd(self, frame: bytes) -> bytes:
        """A header made of anything, over a real body."""
        head = {
            "kind": self.dice.choice(self.kinds),
            "words": {str(self._odd()): self._odd() for _ in range(self.dice.randrange(3))},
            "tensors": [self._spec() for _ in range(self.dice.randrange(4))],
            "packed": self.dice.random() < 0.3,
            "check": self.dice.choice((None, None, None, b"abcd", 7)),
        }
        return whole(msgspec.msgpack.encode(head), split(frame)[2])

    def reworded(self, frame: bytes) -> bytes:
        """One value somewhere in a real header replaced."""
        _, head, body = split(frame)
        words = msgspec.msgpack.decode(head)
        spots = list(_spots(words))
        owner, key = self.dice.choice(spots)
        owner[key] = self.dice.choice(self.kinds) if key == "kind" else self._odd()
        return whole(msgspec.msgpack.encode(words), body)

    def resized(self, frame: bytes) -> bytes:
        """Other tensors, whose bytes are all there: only the contract can tell."""
        _, head, _ = split(frame)
        words, body = msgspec.msgpack.decode(head), b""
        for spec in words["tensors"]:
            if self.dice.random() < 0.5:
                spec[0] = self.dice.choice(list(DTYPES))
            if self.dice.random() < 0.5:
                spec[1] = [self.dice.choice((0, 1, 2, 4, 5, 8, 9)) for _ in range(self.dice.randrange(4))]
            body += bytes(math.prod(spec[1]) * DTYPES[spec[0]].itemsize)
        if self.dice.random() < 0.3:
            words["tensors"] = words["tensors"] * 2
            body *= 2
        return whole(msgspec.msgpack.encode(words), body)

    def poisoned(self, frame: bytes) -> bytes:
        """NaN, infinity or enormous numbers among the bytes of the tensors."""
        _, head, body = split(frame)
        changed, poison = bytearray(body), self.dice.choice((math.nan, math.inf, -math.inf, 3e38, -7.0))
        for _ in range(1 + len(changed) // 64):
            if len(changed) >= 4:
                struct.pack_into("<f", changed, self.dice.randrange(len(changed) // 4) * 4, poison)
        return whole(head, bytes(changed))

    def _odd(self) -> Any:
        return self.dice.choice(ODD)

    def _spec(self) -> list[Any]:
        sides = [self.dice.choice((0, 1, 4, 8, 2**20, 2**31 - 1, 2**31, -1)) for _ in range(self.dice.randrange(10))]
        codes = ("raw", "raw", "float16", "int8", "gzip")
        scale = self.dice.choice((1.0, 0.0, math.nan, 1e308))
        return [
            self.dice.choice([*DTYPES, "complex64"]),
            sides,
            self.dice.random() < 0.3,
            self.dice.choice(codes),
            scale,
        ]


def _spots(words: Any) -> Any:
    """Every (owner, key) in nested words."""
    keys = list(words) if isinstance(words, dict) else range(len(words))
    for key in keys:
        yield words, key
        if isinstance(words[key], dict | list):
            yield from _spots(words[key])
