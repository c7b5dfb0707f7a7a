"""Speech Commands as published: WORD/SPEAKER_nohash_K.wav; testing_list.txt names the test rows."""

from __future__ import annotations

from pathlib import Path

from cutlayer.data.read import logmel, wav
from cutlayer.data.read.common import Raw, bundle, files, lines, place, visible
from cutlayer.data.rows import Bundle, Form
from cutlayer.errors import ContractError, StoreError

LIST = "testing_list.txt"
PLACES = ("speech_commands_v0.02", "SpeechCommands/speech_commands_v0.02")
SPEAKER = "_nohash_"


def _root(folder: Path) -> Path:
    return place(folder, PLACES, [LIST])


def _clips(root: Path) -> list[Path]:
    """All recordings of words; folders such as _background_noise_ are not words."""
    words = [entry for entry in visible(root) if entry.is_dir() and entry.name[0] != "_"]
    return [path for word in words for path in files(word, [".wav"])]


def _files(folder: Path) -> list[Path]:
    root = _root(folder)
    return [root / LIST, *_clips(root)] if (root / LIST).is_file() else []


def _read(folder: Path) -> Bundle:
    root = _root(folder)
    clips = {f"{path.parent.name}/{path.name}": path for path in _clips(root)}
    held = [line.strip() for line in lines(root / LIST)]
    for row, name in enumerate(held):
        if name not in clips and (root / name).parent.is_dir():  # the folder of a word may be missing
            raise StoreError(f"{root / LIST}, row {row}: no file {root / name}")
    tested = set(held)
    train, test = ([path for name, path in clips.items() if (name in tested) is side] for side in (False, True))
    return bundle([_rows(root, train), _rows(root / LIST, test)])


def _rows(where: Path, clips: list[Path]) -> Raw:
    for path in clips:
        if SPEAKER not in path.name:
            raise ContractError(f"{path}: expected a name like 0a7c2a8d{SPEAKER}0.wav, with the speaker first")
    speakers = [path.name.split(SPEAKER)[0] for path in clips]
    x = logmel.features((wav.samples(path, path) for path in clips), len(clips))
    return Raw(where, x, [path.parent.name for path in clips], speakers)


FORM = Form(f"speech_commands_v0.02/ ({LIST}, WORD/*.wav)", _files, _read)
