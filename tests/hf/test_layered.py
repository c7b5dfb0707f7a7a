"""Models of transformers as blocks: the same outputs and gradients as the model itself, wherever it is cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutlayer as cl
from tests.hf import nets

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]  # transformers warns of its own parts


def gradients(out: Tensor, model: nn.Module) -> list[Tensor | None]:
    weights = [p for p in model.parameters() if p.requires_grad]
    return list(torch.autograd.grad(out.square().mean(), weights, allow_unused=True))


def through(made: Any, x: dict[str, Tensor], cut: int) -> Tensor:
    """The output of the blocks, of which those after the cut get only tensors."""
    out: Any = x
    for index, block in enumerate(made.blocks):
        out = block(out)
        if index == cut and isinstance(out, dict):
            out = {name: tensor.clone() for name, tensor in out.items()}
    assert isinstance(out, Tensor)
    return out


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("family", nets.FAMILIES)
def test_blocks_compute_what_the_model_computes(family: str, masked: bool, seed: int) -> None:
    if not masked and family.endswith("-classes"):
        pytest.skip("the head looks for padding: test_a_head_that_looks_for_padding")
    model, x = nets.make(family, seed), nets.inputs(family, masked)
    made = cl.blocks(model, example=x)
    more = {"use_cache": False} if "use_cache" in model.forward.__code__.co_varnames else {}
    for mode in (True, False):
        made.train(mode)
        torch.manual_seed(2)  # dropout
        whole = model(**x, **more).logits
        expected = gradients(whole, model)
        assert any(g is not None and bool(g.any()) for g in expected)
        for cut in range(len(made.blocks)):
            torch.manual_seed(2)
            out = through(made, x, cut)
            torch.testing.assert_close(out, whole, rtol=1e-6, atol=1e-6)
            for found, g in zip(gradients(out, model), expected, strict=True):
                assert (found is None) == (g is None)
                if found is not None:
                    torch.testing.assert_close(found, g, rtol=1e-5, atol=1e-7)


def test_names_and_cuts() -> None:
    model = nets.make("llama", 3)
    made, layers = cl.blocks(model), model.config.num_hidden_layers
    assert made.names == ["model.embed_tokens", *(f"model.layers.{i}" for i in range(layers)), "head"]
    front, back = cl.halves(made, "model.layers.1")
    assert len(front) == 3 and len(back) == layers - 1
    x = nets.inputs("llama")
    torch.testing.assert_close(back.eval()(dict(front.eval()(x))), model.eval()(**x).logits)


def test_packed_documents_do_not_see_each_other() -> None:
    model = nets.make("llama", 4).eval()
    ids = torch.randint(2, nets.VOCABULARY, (2, 10))
    packed = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]] * 2)}
    made = cl.blocks(model, example=packed).eval()
    out = through(made, packed, 1)
    torch.testing.assert_close(out[:, 4:], model(ids[:, 4:]).logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(out[:, 4:], model(ids).logits[:, 4:])


def test_a_head_that_looks_for_padding() -> None:
    with pytest.raises(cl.ContractError, match=r"'input_ids' alone; the model's head looks for padding.*_mask"):
        cl.blocks(nets.make("llama-classes"), example=nets.inputs("llama", masked=False))


def test_what_cannot_be_cut() -> None:
    transformers = nets.transformers()
    small = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 50}
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**small))
    with pytest.raises(cl.ContractError, match="T5ForConditionalGeneration: its layers cannot be separated"):
        cl.blocks(t5)
    bare = nets.make("llama").get_submodule("model")
    with pytest.raises(cl.ContractError, match="no logits; expected a model with a head"):
        cl.blocks(bare)
    with pytest.raises(cl.ContractError, match=r"at = .*: expected None: this model has a block for each"):
        cl.blocks(nets.make("llama"), at=["model.layers.0"])
    with pytest.raises(cl.ContractError, match="the model's main input, 'input_ids'"):
        cl.blocks(nets.make("llama"), example={"attention_mask": torch.ones(2, 4)})


def test_a_row_longer_than_the_models_positions() -> None:
    rows = torch.randint(2, nets.VOCABULARY, (4, 65))
    with pytest.raises(cl.ContractError, match=r"65 tokens in a row.*at most 64, the positions that the model has"):
        cl.train(nets.tiny(), [(rows, rows)], cut=1, rounds=1, batch_size=2)


def test_tied_embeddings_are_one_parameter_of_one_side() -> None:
    model, rows = nets.tiny(tie_word_embeddings=True), torch.randint(2, nets.VOCABULARY, (4, 6))
    options: dict[str, Any] = {"cut": 1, "rounds": 1, "batch_size": 2, "local_epochs": 1, "loss": next_token}
    with pytest.raises(cl.ContractError, match=r"'model.embed_tokens.weight' is shared by blocks 0 and 3.*labels=\"st"):
        cl.train(model, [(rows, rows)], **options)
    tied = cl.train(model, [(rows, rows)], labels="stay", **options).model
    assert tied.lm_head.weight is tied.model.embed_tokens.weight  # type: ignore[union-attr]
    plain = nets.tiny(tie_word_embeddings=True)
    step = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for batch in batches(rows, 2):
        step.zero_grad()
        next_token(plain(batch).logits, batch).backward()
        step.step()
    for found, expected in zip(tied.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    adapted = nets.with_lora(nets.tiny(tie_word_embeddings=True))  # frozen, so both sides have it
    assert cl.train(adapted, [(rows, rows)], **options).history


def batches(rows: Tensor, size: int) -> list[Tensor]:
    """The batches of the first round, as the library draws them."""
    from cutlayer.data.schedule import BatchSchedule

    schedule = BatchSchedule(size, 1, None, True, "drop", "skip", 0, False, 1)
    return [rows[torch.as_tensor(batch.rows)] for batch in schedule.batches(len(rows), 1, 0, 0)]


def next_token(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), y[:, 1:].flatten())
