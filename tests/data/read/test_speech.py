"""Speech Commands' folder, WAV files, and log-mel pictures against a plain computation of the same."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pytest

from cutlayer.data.read import logmel, wav
from cutlayer.data.read.speech import FORM
from cutlayer.errors import ContractError, StoreError


def recording(samples: np.ndarray, channels: int = 1, width: int = 2, rate: int = 16000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def tone(hertz: float, loud: float = 8000, length: int = 16000) -> np.ndarray:
    return np.rint(loud * np.sin(2 * np.pi * hertz * np.arange(length) / 16000)).astype(np.int16)


def noise(seed: int = 0, loud: float = 3000, length: int = 16000) -> np.ndarray:
    return np.rint(np.random.default_rng(seed).normal(size=length) * loud).clip(-32768, 32767).astype(np.int16)


def to_mel(hertz: float) -> float:
    """Slaney's Auditory Toolbox: linear to 1 kHz, logarithmic above."""
    return hertz / (200 / 3) if hertz < 1000 else 1000 / (200 / 3) + np.log(hertz / 1000) / (np.log(6.4) / 27)


def to_hertz(mel: float) -> float:
    return mel * (200 / 3) if mel < 15 else 1000 * np.exp((np.log(6.4) / 27) * (mel - 15))


def plain_logmel(samples: np.ndarray) -> np.ndarray:
    """Frame by frame and band by band, with a discrete Fourier transform written out."""
    sound = np.zeros(16000)
    sound[: len(samples)] = samples[:16000] / 32768
    padded = np.concatenate([np.zeros(1024), sound, np.zeros(1024)])
    window = np.array([0.5 - 0.5 * np.cos(2 * np.pi * n / 2048) for n in range(2048)])
    angles = 2 * np.pi * (np.outer(np.arange(1025), np.arange(2048)) % 2048) / 2048
    cosine, sine = np.cos(angles), np.sin(angles)
    corners = [to_hertz(to_mel(8000) * k / 33) for k in range(34)]
    power = np.zeros((32, 32))
    for frame in range(32):
        piece = padded[512 * frame : 512 * frame + 2048] * window
        spectrum = (cosine @ piece) ** 2 + (sine @ piece) ** 2
        for band in range(32):
            low, mid, high = corners[band : band + 3]
            for k in range(1025):
                at = 8000 * k / 1024
                if low < at < high:
                    height = (at - low) / (mid - low) if at <= mid else (high - at) / (high - mid)
                    power[band, frame] += spectrum[k] * height * 2 / (high - low)
    decibels = 10 * np.log10(np.maximum(power, 1e-10)) - 10 * np.log10(max(power.max(), 1e-10))
    return np.maximum(decibels, decibels.max() - 80)


@pytest.mark.parametrize(
    "clip",
    [noise(), tone(440), tone(3500, 30), noise(1, 3), noise(2, length=9000), noise(3, length=20000)],
    ids=["noise", "tone", "quiet tone", "quiet noise", "short", "long"],
)
def test_pictures_are_what_the_formula_says(clip: np.ndarray) -> None:
    found = logmel.features([clip], 1)
    assert found.shape == (1, 1, 32, 32) and found.dtype == np.float32
    assert np.abs(found[0, 0] - plain_logmel(clip)).max() < 1e-4
    assert found.max() == 0 and found.min() >= -80


def test_silence_and_batches() -> None:
    assert np.array_equal(logmel.features([np.zeros(16000, dtype=np.int16)], 1), np.zeros((1, 1, 32, 32)))
    clips = [noise(k, length=16000 - 700 * (k % 3)) for k in range(2 * logmel.AT_ONCE + 3)]
    together = logmel.features(clips, len(clips))
    for k in (0, 1, 2, logmel.AT_ONCE - 1, logmel.AT_ONCE, len(clips) - 1):
        assert np.abs(together[k] - logmel.features([clips[k]], 1)[0]).max() < 1e-4
    assert logmel.features([], 0).shape == (0, 1, 32, 32)


def test_samples_come_out_as_they_went_in(tmp_path: Path) -> None:
    clip = noise(length=123)
    (tmp_path / "a.wav").write_bytes(recording(clip))
    assert np.array_equal(wav.samples(tmp_path / "a.wav", "a"), clip)
    assert np.array_equal(wav.samples(recording(clip), "a"), clip)


def test_what_is_wrong_with_a_recording_is_said(tmp_path: Path) -> None:
    good = recording(noise(length=100))
    for data, said in [
        (b"", "not a readable WAV file"),
        (b"nonsense", "not a readable WAV file"),
        (good[:30], "not a readable WAV file"),
        (good[:-10], "samples = 95: expected 100, as announced"),
        (good[:-11], "samples = 94: expected 100, as announced"),
        (recording(noise(length=0)), "samples = 0: expected some, as announced"),
        (
            recording(noise(length=100), channels=2),
            r"channels, bits, rate = \(2, 16, 16000\): expected \(1, 16, 16000\)",
        ),
        (recording(noise(length=100), width=1), r".* = \(1, 8, 16000\)"),
        (recording(noise(length=100), rate=8000), r".* = \(1, 16, 8000\)"),
        (good[:20] + b"\x03" + good[21:], "not a readable WAV file: unknown format: 3"),
    ]:
        with pytest.raises(ContractError, match=rf"no/a\.wav: {said}"):
            wav.samples(data, "no/a.wav")
    with pytest.raises(ContractError, match="not a readable WAV file"):
        wav.samples(tmp_path / "nowhere.wav", "nowhere")
    rng = np.random.default_rng(0)
    for _ in range(200):
        bent = bytearray(good)
        bent[rng.integers(44)] = rng.integers(256)
        try:
            wav.samples(bytes(bent), "f")
        except ContractError as error:
            assert str(error).startswith("f: ")  # noqa: PT017


CLIPS = ["yes/b_nohash_0.wav", "yes/a_nohash_0.wav", "no/a_nohash_1.wav", "no/c_nohash_0.wav", "up/b_nohash_0.wav"]


def write(root: Path) -> dict[str, np.ndarray]:
    held = {}
    for k, name in enumerate(CLIPS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        held[name] = noise(k)
        (root / name).write_bytes(recording(held[name]))
    (root / "_background_noise_").mkdir()
    (root / "_background_noise_" / "tap.wav").write_bytes(b"not read")
    (root / "validation_list.txt").write_text("no/a_nohash_1.wav\n")
    (root / "testing_list.txt").write_text("no/c_nohash_0.wav\nyes/a_nohash_0.wav\nleft/x_nohash_0.wav\n")
    return held


@pytest.mark.parametrize("inside", ["", "speech_commands_v0.02"])
def test_the_testing_list_is_the_test(tmp_path: Path, inside: str) -> None:
    assert FORM.files(tmp_path) == []
    held = write(tmp_path / inside)
    bundle = FORM.read(tmp_path)
    assert bundle.class_names == ("no", "up", "yes")
    for rows, names in (
        (bundle.train, ["no/a_nohash_1.wav", "up/b_nohash_0.wav", "yes/b_nohash_0.wav"]),
        (bundle.test, ["no/c_nohash_0.wav", "yes/a_nohash_0.wav"]),
    ):
        assert np.abs(rows.x - logmel.features([held[name] for name in names], len(names))).max() < 1e-4
    assert bundle.train.y.tolist() == [0, 1, 2] and bundle.test.y.tolist() == [0, 2]
    assert bundle.train.owner_names == ("a", "b", "c")
    assert bundle.train.owners is not None and bundle.train.owners.tolist() == [0, 1, 1]
    assert bundle.test.owners is not None and bundle.test.owners.tolist() == [2, 0]
    assert len(FORM.files(tmp_path)) == 6


def test_what_is_wrong_with_the_folder_is_said(tmp_path: Path) -> None:
    write(tmp_path)
    with (tmp_path / "testing_list.txt").open("a") as file:
        file.write("no/z_nohash_0.wav\n")
    with pytest.raises(StoreError, match=r"testing_list\.txt, row 3: no file .*z_nohash_0\.wav"):
        FORM.read(tmp_path)
    (tmp_path / "testing_list.txt").write_text("up/b_nohash_0.wav\n")
    with pytest.raises(ContractError, match=r"testing_list\.txt: class 'up' has no training rows"):
        FORM.read(tmp_path)
    (tmp_path / "no" / "plain.wav").write_bytes(recording(noise()))
    with pytest.raises(ContractError, match=r"plain\.wav: expected a name like .*_nohash_0\.wav"):
        FORM.read(tmp_path)
    (tmp_path / "no" / "plain.wav").unlink()
    (tmp_path / "yes" / "b_nohash_0.wav").write_bytes(recording(noise(), rate=8000))
    with pytest.raises(ContractError, match=r"b_nohash_0\.wav: channels, bits, rate"):
        FORM.read(tmp_path)
