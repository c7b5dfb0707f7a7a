"""One file of a run directory is damaged: the run recovers by itself, to the bit, and loses one interval at most."""

from __future__ import annotations

import random
import shutil
import warnings
from contextlib import suppress
from pathlib import Path

import torch

import cutlayer as cl
from cutlayer.errors import CutlayerError, Restored, StoreError
from cutlayer.experiment import checkpoint, description, journal, model_profile, run_directory
from cutlayer.report.summary import gather
from tests.nightly.damage import damage, drawn_file
from tests.nightly.others import OTHERS
from tests.nightly.runs import Template, drawn_template, finish, resumed, same

TROUBLE = (Restored, checkpoint.DamagedCheckpoint, checkpoint.LostJournal, journal.DamagedJournal, journal.TornJournal)


def play(seed: int, folder: Path) -> None:
    dice, out = random.Random(seed), folder / "run"
    kind = dice.choices(("run", *OTHERS), (8, 1, 1, 1))[0]
    if kind == "run":
        template = drawn_template(dice)
        n = dice.randint(0, template.rounds)
        shutil.copytree(template.after(n), out)
        path = drawn_file(out, dice)
        name = path.relative_to(out)
        what = f"{template.name} after round {n}, {name}: {damage(path, dice)}"
    else:
        what = OTHERS[kind][0](out, dice)
    try:
        if kind == "run":
            read(template.after(n), out, name)
            recover(template, n, out)
        else:
            OTHERS[kind][1](out)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def recover(template: Template, n: int, out: Path) -> None:
    assert not description.serves(out, checkpoint.config(out)), "taken for a server's"
    experiment = resumed(out)
    assert experiment.run.state.n in template.checkpoints(n), f"resumed from round {experiment.run.state.n}"
    same(finish(experiment), template.ended)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert list(resumed(out)) == []
    trouble = [str(one.message) for one in said if issubclass(one.category, TROUBLE)]
    assert not trouble, f"not mended: {trouble}"


def read(before: Path, out: Path, name: Path) -> None:
    """Whoever only reads a damaged file has what it said, or an error with a name."""
    with suppress(CutlayerError):
        gather(out)
    try:
        if name.suffix == ".safetensors" and name.parts[0] != "checkpoints":
            right, found = (cl.load(place / name).state_dict() for place in (before, out))
            assert right.keys() == found.keys() and all(torch.equal(right[key], found[key]) for key in right), "load"
        elif name.name == run_directory.SUMMARY and (out / name).exists():
            assert run_directory.read_summary(out) == run_directory.read_summary(before), "summary"
        elif name.name == model_profile.FILE:
            assert model_profile.read(out) == model_profile.read(before), "blocks"
        elif name.name.startswith("journal"):
            right, found = (journal.read(place / journal.FILE) for place in (before, out))
            assert found == right[: len(found)], "journal"
    except StoreError:
        pass
