"""WAV recordings of 16 bits, one channel, 16 kHz."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cutlayer.errors import ContractError, expect

RATE = 16000
Samples = NDArray[np.int16]


def samples(source: bytes | Path, where: object) -> Samples:
    """Read the samples of a WAV file, given by path or as bytes."""
    try:
        with wave.open(io.BytesIO(source) if isinstance(source, bytes) else str(source)) as file:
            kind = (file.getnchannels(), 8 * file.getsampwidth(), file.getframerate())
            count, data = file.getnframes(), file.readframes(file.getnframes())
    except (wave.Error, EOFError, OSError, MemoryError, RuntimeError, ValueError) as error:
        raise ContractError(f"{where}: not a readable WAV file: {error or 'it ends too soon'}") from error
    expect(kind == (1, 16, RATE), f"{where}: channels, bits, rate", kind, f"(1, 16, {RATE})")
    expect(0 < 2 * count == len(data), f"{where}: samples", len(data) // 2, f"{count or 'some'}, as announced")
    return np.frombuffer(data, dtype="<i2")
