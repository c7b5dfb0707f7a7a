"""What a model sees of stored rows: normalised by hand, moved at random but at an address."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cutlayer as cl
from cutlayer.data.parts import Parts
from cutlayer.data.rows import StoredRows
from cutlayer.data.transform import Codes, Pixels, Values
from cutlayer.data.views import Population, View

X = np.random.default_rng(0).integers(0, 256, (40, 3, 6, 6), dtype=np.uint8)
ROWS = StoredRows(X, np.arange(40) % 4)
MEAN, STD = (0.1, 0.5, 0.9), (0.2, 0.3, 0.4)
CPU = torch.device("cpu")


def moved_by_hand(image: np.ndarray, pad: int, down: int, right: int, mirrored: bool) -> np.ndarray:
    """Padded with black, a window cut out, mirrored if asked."""
    wide = np.zeros((3, 6 + 2 * pad, 6 + 2 * pad), dtype=np.uint8)
    wide[:, pad : pad + 6, pad : pad + 6] = image
    window = wide[:, down : down + 6, right : right + 6]
    return window[:, :, ::-1] if mirrored else window


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_are_normalised_by_channel(dtype: torch.dtype) -> None:
    got = Pixels(MEAN, STD)(torch.from_numpy(X), dtype, None)
    by_hand = (X / 255 - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]
    assert got.dtype == dtype
    assert np.allclose(got.numpy(), by_hand, atol=1e-6)


@pytest.mark.parametrize(("pad", "flip"), [(2, True), (2, False), (0, True)])
def test_every_moved_image_is_a_window_of_its_padded_self(pad: int, flip: bool) -> None:
    got = Pixels(pad=pad, flip=flip)(torch.from_numpy(X), torch.float64, lambda: np.random.default_rng(1))
    pixels = (got * 255).round().numpy().astype(np.uint8)
    ways = [(d, r, f) for d in range(2 * pad + 1) for r in range(2 * pad + 1) for f in ({False, flip})]
    used = set()
    for image, out in zip(X, pixels, strict=True):
        fits = [way for way in ways if np.array_equal(moved_by_hand(image, pad, *way), out)]
        assert fits
        used.update(fits[:1])
    assert len(used) > 1  # not all moved alike


def test_nothing_moves_in_a_test_and_the_same_address_moves_alike() -> None:
    look = Pixels(pad=2, flip=True)
    x = torch.from_numpy(X)
    assert torch.equal(look(x, torch.float32, None), Pixels()(x, torch.float32, None))
    first, again, other = (look(x, torch.float32, lambda s=s: np.random.default_rng(s)) for s in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_codes_become_integers_and_features_are_standardised() -> None:
    codes = Codes()(torch.tensor([[3, 255]], dtype=torch.uint8), torch.float32, None)
    assert codes.dtype == torch.int64 and codes.tolist() == [[3, 255]]
    assert Values(-30.0, 20.0)(torch.tensor([-50.0, 10.0]), torch.float64, None).tolist() == [-1.0, 2.0]


def test_a_population_hands_out_each_client_its_rows() -> None:
    parts = Parts.of([np.array([7, 3]), np.array([], dtype=np.int64), np.array([39])])
    people = Population(ROWS, parts, Pixels())
    assert len(people) == 3 and people.sizes.tolist() == [2, 0, 1]
    x, y = people[0].take(np.array([1, 0]), CPU)
    assert torch.equal(x, torch.from_numpy(X[[7, 3]]).float() / 255) and y.tolist() == [3, 3]
    assert [len(view) for view in people[1:]] == [0, 1]
    assert people[2].name == "clients[2]"


def test_training_moves_images_and_is_the_same_again() -> None:
    def run(look: Pixels) -> list[float | None]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        people = Population(ROWS, Parts.of([np.arange(20), np.arange(20, 40)]), look)
        test = View(ROWS, np.arange(40), Pixels())
        result = cl.train(model, people, test=test, cut=1, rounds=3, batch_size=5, local_epochs=1)
        return [record.loss for record in result.history]

    moved = run(Pixels(pad=1, flip=True))
    assert moved == run(Pixels(pad=1, flip=True))
    assert moved != run(Pixels())


def test_views_equal_tensors_in_training() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    x, y = torch.from_numpy(X).float() / 255, torch.from_numpy(ROWS.y)
    parts = [np.arange(17), np.arange(17, 40)]
    settings = {"cut": 1, "rounds": 2, "batch_size": 5, "local_epochs": 2, "participation": 1}
    stored = cl.train(model, Population(ROWS, Parts.of(parts), Pixels()), test=(x, y), **settings)
    plain = cl.train(model, [(x[part], y[part]) for part in parts], test=(x, y), **settings)
    for one, other in zip(stored.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
