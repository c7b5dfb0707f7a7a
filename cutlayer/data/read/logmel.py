"""Recordings as pictures: 32 mel bands by 32 frames, in decibels below the loudest.

The same as librosa's `melspectrogram(sr=16000, n_fft=2048, hop_length=512, n_mels=32)` and `power_to_db(ref=max)` give
for one second: Slaney's mel scale and norm, a periodic Hann window, frames centred with zeros beyond the ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.data.read.wav import RATE, Samples

FFT, HOP, BANDS = 2048, 512, 32
FRAMES = 1 + RATE // HOP
QUIET = 1e-10  # lower power counts as silence
RANGE = 80.0  # decibels kept
AT_ONCE = 16  # clips at a time: their spectra fit the cache


def features(clips: Iterable[Samples], count: int) -> NDArray[np.float32]:
    """Return pictures [count, 1, bands, frames] of `count` clips, cut or padded with silence to one second."""
    out = np.empty((count, 1, BANDS, FRAMES), dtype=np.float32)
    batch = np.zeros((min(AT_ONCE, count), RATE), dtype=np.int16)
    for row, clip in enumerate(clips):
        at = row % AT_ONCE
        batch[at, : len(clip)] = clip[:RATE]
        batch[at, len(clip) :] = 0
        if at == AT_ONCE - 1 or row == count - 1:
            out[row - at : row + 1, 0] = logmel(torch.from_numpy(batch[: at + 1])).numpy()
    return out


def logmel(x_BT: Tensor) -> Tensor:
    """16-bit samples to decibels [B, bands, frames], in double precision: single is too coarse 80 dB below the peak."""
    window = torch.hann_window(FFT, periodic=True, dtype=torch.float64)
    sound = x_BT.to(torch.float64) / 32768
    spectrum = torch.stft(sound, FFT, HOP, window=window, center=True, pad_mode="constant", return_complex=True)
    power = (_filters() @ (spectrum.real**2 + spectrum.imag**2)).clamp(min=QUIET)
    decibels = 10 * torch.log10(power / power.amax(dim=(1, 2), keepdim=True))
    return decibels.clamp(min=-RANGE).to(torch.float32)


@cache
def _filters() -> Tensor:
    """Triangular filters over the spectrum [bands, FFT/2 + 1], of area 1, with corners evenly spaced in mel."""
    corners = _hertz(torch.linspace(0, _mel(RATE / 2), BANDS + 2, dtype=torch.float64))[:, None]
    low, mid, high = corners[:-2], corners[1:-1], corners[2:]
    at = torch.linspace(0, RATE / 2, FFT // 2 + 1, dtype=torch.float64)
    return torch.minimum((at - low) / (mid - low), (high - at) / (high - mid)).clamp(min=0) * 2 / (high - low)


# Slaney's scale: 3 mel per 200 Hz up to 1 kHz (15 mel), and from there 27 mel per factor of 6.4.


def _mel(hertz: float) -> float:
    return 15 + 27 * float(np.log(hertz / 1000) / np.log(6.4)) if hertz >= 1000 else 3 * hertz / 200


def _hertz(mel: Tensor) -> Tensor:
    return torch.where(mel < 15, 200 * mel / 3, 1000 * 6.4 ** ((mel - 15) / 27))
