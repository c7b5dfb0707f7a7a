"""Words and tensors become bytes and come back as they were: values, types, shapes, and the order of images."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cutlayer.core.pack import pack, unpack

LAST = torch.channels_last


def ramp(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers that are all different."""
    return torch.arange(math.prod(shape)).view(shape).to(dtype) - 7


TENSORS: dict[str, Tensor] = {
    "plain image": ramp(2, 3, 4, 5),
    "channels last": ramp(2, 3, 4, 5).contiguous(memory_format=LAST),
    "kernels": ramp(8, 3, 3, 3, dtype=torch.float64).contiguous(memory_format=LAST),
    "one picture": ramp(1, 3, 4, 5).contiguous(memory_format=LAST),
    "a row of pixels": ramp(4, 3, 1, 5).contiguous(memory_format=LAST),
    "bytes, channels last": (ramp(2, 3, 4, 5) + 7).byte().contiguous(memory_format=LAST),
    "a number": torch.tensor(math.pi, dtype=torch.float64),
    "a whole number": torch.tensor(-(2**63)),
    "nothing": torch.empty(0),
    "no rows": torch.empty(0, 3, dtype=torch.int64),
    "no channels": torch.empty(2, 0, 3, 3),
    "truths": torch.tensor([True, False, True]),
    "counters": torch.tensor([0, 2**62, -1]),
    "double": ramp(7, dtype=torch.float64),
    "bfloat16": ramp(3, 3, dtype=torch.bfloat16),
    "half": ramp(5, dtype=torch.float16),
    "not numbers": torch.tensor([float("nan"), float("inf"), -0.0]),
    "five dimensions": ramp(2, 3, 2, 2, 2),
}
SCATTERED: dict[str, Tensor] = {
    "transposed": ramp(3, 4).t(),
    "every second": torch.arange(10)[1::2],
    "expanded": torch.tensor([1.5]).expand(4),
    "a part of an image": ramp(4, 3, 6, 6)[:, :, 1:4, ::2],
    "every second picture": ramp(4, 3, 6, 6).contiguous(memory_format=LAST)[::2],
    "turned": ramp(2, 3, 4, 5).permute(0, 2, 3, 1),
}


def back(*tensors: Tensor) -> list[Tensor]:
    blob = pack("words", tensors)
    assert blob.dtype == torch.uint8 and blob.ndim == 1
    words, found = unpack(blob)
    assert words == "words"
    return found


def same(one: Tensor, other: Tensor) -> bool:
    """Type, shape and bits."""
    bits = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


@pytest.mark.parametrize("name", TENSORS)
def test_dense_tensors_come_back_as_they_lay(name: str) -> None:
    (found,) = back(TENSORS[name])
    assert same(found, TENSORS[name]) and found.stride() == TENSORS[name].stride()


@pytest.mark.parametrize("name", SCATTERED)
def test_scattered_tensors_come_back_dense(name: str) -> None:
    (found,) = back(SCATTERED[name])
    assert same(found, SCATTERED[name])
    assert found.is_contiguous() or found.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("shape", [(4, 1, 6, 6), (4, 8, 1, 1)])
def test_images_that_could_be_in_either_order_keep_theirs(shape: tuple[int, ...]) -> None:
    """A convolution or GroupNorm that comes next asks for the strides, and may round otherwise."""
    _, c, h, w = shape
    image = torch.empty_strided(shape, (c * h * w, 1, c * w, c)).fill_(0.5)
    assert back(image)[0].stride() == image.stride()


def test_all_of_them_at_once_in_order() -> None:
    """None begins where its type would like to, and none is a view of the bytes or of another."""
    everything = [*TENSORS.values(), *SCATTERED.values()]
    blob = pack({"n": len(everything)}, everything)
    _, found = unpack(blob)
    assert len(found) == len(everything)
    assert all(same(one, other) for one, other in zip(found, everything, strict=True))
    blob.zero_()
    assert all(same(one, other) for one, other in zip(found, everything, strict=True))
    places = [t.untyped_storage().data_ptr() for t in found if t.numel()]
    assert len(set(places)) == len(places)


def test_a_leaf_travels_without_its_graph() -> None:
    leaf = ramp(3).requires_grad_()
    (found,) = back(leaf * 2)
    assert not found.requires_grad and torch.equal(found, (leaf * 2).detach())


WORDS: list[Any] = [
    None,
    [],
    {},
    "ünïcödé \n \x00",
    [1, [2, [3.5, None, True]], {"a": {"b": ["c", -1e-300]}}],
    {"": [], "nested": {"empty": {}, "large": 2**80}},
]


@pytest.mark.parametrize("words", WORDS, ids=repr)
@pytest.mark.parametrize("tensors", [(), (torch.arange(3),)], ids=["alone", "with a tensor"])
def test_plain_words_come_back(words: Any, tensors: tuple[Tensor, ...]) -> None:
    found, rest = unpack(pack(words, tensors))
    assert found == words and len(rest) == len(tensors)


def test_tuples_come_back_as_lists() -> None:
    assert unpack(pack(((1, 2), "x")))[0] == [[1, 2], "x"]


@pytest.mark.parametrize("words", [{1, 2}, b"bytes", torch.zeros(2), object()], ids=lambda words: type(words).__name__)
def test_what_is_not_plain_does_not_travel(words: Any) -> None:
    with pytest.raises(TypeError):
        pack(words)


LETTERS = 'a"\\\n\x00é\u4e2d'
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(LETTERS, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(LETTERS, max_size=3), inner, max_size=3),
    max_leaves=6,
)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])


@given(PLAIN, st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=5), DTYPES, st.booleans()), max_size=4))
@settings(max_examples=40, deadline=None)
def test_anything_plain_with_tensors_of_any_shape(words: Any, made: list[tuple[list[int], torch.dtype, bool]]) -> None:
    tensors = []
    for shape, dtype, turned in made:
        tensor = ramp(*shape).to(dtype)
        tensors.append(tensor.movedim(0, -1) if turned and tensor.ndim else tensor)
    found, rest = unpack(pack(words, tensors))
    assert found == words
    assert all(same(one, other) for one, other in zip(rest, tensors, strict=True))
