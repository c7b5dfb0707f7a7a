"""Training adapters: the base is never copied or written, and the adapters can be read back by PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import cutlayer as cl
from tests.hf import nets
from tests.hf.test_layered import next_token

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]
SMALL: dict[str, Any] = {"cut": 1, "rounds": 2, "batch_size": 4, "local_epochs": 1, "loss": next_token}


def texts(clients: int = 3, rows: int = 8) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(6)
    found = [torch.randint(2, nets.VOCABULARY, (rows, 7), generator=draw) for _ in range(clients)]
    return [(ids, ids) for ids in found]


def saved_base(folder: Path, **more: Any) -> Any:
    """A base as users have it: saved to disk, and loaded by its path."""
    nets.tiny(**more).save_pretrained(folder)  # type: ignore[operator]
    return nets.transformers().AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)


def adapters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def plain(model: nn.Module, rows: Tensor, lr: float) -> nn.Module:
    """One step of plain PEFT training."""
    step = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)
    next_token(model(rows).logits, rows).backward()
    step.step()
    return model


@pytest.mark.parametrize("scheme", ["fedavg", "smofi", "sflv2", "cyclesfl", "mergesfl", "psl", "sglr", "ssl"])
@pytest.mark.parametrize("labels", ["send", "stay"])
def test_every_scheme_trains_the_adapters_alone(scheme: str, labels: str) -> None:
    if labels == "stay" and scheme == "cyclesfl":
        pytest.skip("the Cycle schemes need the labels")
    model = nets.with_lora(nets.tiny())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    result = cl.train(model, texts(), scheme=scheme, labels=labels, **SMALL)
    assert type(result.model) is type(model)
    for (name, found), given in zip(result.model.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(given, before[name])  # the caller's model is as it was
        assert found.requires_grad == given.requires_grad
        assert torch.equal(found, given) != found.requires_grad, name
        assert found.requires_grad or found.data_ptr() == given.data_ptr()  # the base is not copied


@pytest.mark.parametrize("scheme", ["fedavg", "smofi"])
def test_one_client_is_plain_peft_training(scheme: str) -> None:
    rows = texts(1, 4)[0][0]
    options = {**SMALL, "rounds": 1, "optimizer": cl.SGD(lr=0.5, momentum=0.9, weight_decay=0.0)}
    model = nets.with_lora(nets.tiny()).double()
    found = cl.train(model, [(rows, rows)], scheme=scheme, shuffle=False, **options).model
    expected = plain(nets.with_lora(nets.tiny()).double(), rows, 0.5)
    for name, weight in adapters(expected).items():
        torch.testing.assert_close(adapters(found)[name], weight, rtol=1e-9, atol=1e-9)


def test_a_base_in_bfloat16_with_adapters_in_float32(tmp_path: Path) -> None:
    base = saved_base(tmp_path / "base").to(torch.bfloat16)
    model = nets.with_lora(base)
    assert {p.dtype for p in adapters(model).values()} == {torch.float32}
    result = cl.train(model, texts(), scheme="smofi", out=tmp_path / "run", **SMALL)
    assert {p.dtype for p in adapters(result.model).values()} == {torch.float32}
    assert {p.dtype for p in result.model.parameters() if not p.requires_grad} == {torch.bfloat16}
    again = cl.load(tmp_path / "run" / "adapter", base)
    for name, weight in adapters(result.model).items():
        assert torch.equal(adapters(again)[name], weight)


def test_a_frozen_front_gets_no_gradients() -> None:
    """Cut after the embeddings, which have no adapters: what goes down is the adapters alone."""
    model = nets.with_lora(nets.tiny())
    frozen, trained = (cl.train(model, texts(), scheme="smofi", **{**SMALL, "cut": cut}).history[-1] for cut in (0, 1))
    assert frozen.bytes_down == 0
    assert trained.bytes_down > 3 * 2 * 4 * 7 * 16 * 4  # clients, steps, rows, tokens, width, bytes


def test_what_a_run_writes(tmp_path: Path) -> None:
    base, out = saved_base(tmp_path / "base"), tmp_path / "run"
    result = cl.train(nets.with_lora(base), texts(), scheme="smofi", out=out, **SMALL)
    assert not (out / "model.safetensors").exists()
    files = load_file(str(out / "adapter" / "adapter_model.safetensors"))
    assert len(files) == len(adapters(result.model)) and all("lora_" in name for name in files)
    held = sum(path.stat().st_size for path in out.rglob("*.safetensors"))
    assert held < 8 * (sum(4 * p.numel() for p in adapters(result.model).values()) + 4096)  # and no base
    assert json.loads((out / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        tmp_path / "base"
    )
    fresh = nets.transformers().AutoModelForCausalLM.from_pretrained(tmp_path / "base", use_safetensors=True)
    theirs = nets.peft().PeftModel.from_pretrained(fresh, out / "adapter")
    rows = texts()[0][0]
    with torch.no_grad():
        expected = result.model.eval()(rows).logits
        torch.testing.assert_close(theirs.eval()(rows).logits, expected)
        given = nets.transformers().AutoModelForCausalLM.from_pretrained(tmp_path / "base", use_safetensors=True)
        torch.testing.assert_close(cl.load(out / "adapter", given)(rows).logits, expected)
        torch.testing.assert_close(cl.open(out).model(given)(rows).logits, expected)
    assert all(p.requires_grad for p in given.parameters())  # the caller's base is as it was
    summary = json.loads((out / "summary.json").read_text())
    assert summary["base"]["name"] == str(tmp_path / "base") and len(summary["base"]["sha256"]) == 64


def test_a_run_is_resumed_with_the_same_base_alone(tmp_path: Path) -> None:
    base, out = saved_base(tmp_path / "base"), tmp_path / "run"
    whole = cl.train(nets.with_lora(base), texts(), scheme="smofi", out=tmp_path / "whole", **SMALL)
    run = cl.rounds(nets.with_lora(base), texts(), scheme="smofi", out=out, **SMALL)
    next(run)
    run.close()
    other = saved_base(tmp_path / "other", initializer_range=0.1)
    with pytest.raises(cl.ContractError, match="the weights of its model that are not trained have changed"):
        cl.train(nets.with_lora(other), texts(), scheme="smofi", out=out, **SMALL)
    again = cl.train(nets.with_lora(base), texts(), scheme="smofi", out=out, **SMALL)
    for name, weight in adapters(whole.model).items():
        assert torch.equal(adapters(again.model)[name], weight)
    with pytest.raises(cl.StoreError, match="trained on a base with the digest"):
        cl.load(out / "adapter", other)
    with pytest.raises(cl.StoreError, match="adapters do not fit the model"):
        cl.load(out / "adapter", nets.tiny(hidden_size=24))


def test_prompts_are_no_adapters() -> None:
    peft = nets.peft()
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(cl.ContractError, match="expected adapters that wrap modules, such as LoRA"):
        cl.train(peft.get_peft_model(nets.tiny(), settings), texts(), **SMALL)


@pytest.mark.parametrize("kind", ["IA3Config", "LoHaConfig", "VeraConfig"])
def test_other_adapters_that_wrap_modules(kind: str) -> None:
    peft = nets.peft()
    more = {"IA3Config": {"feedforward_modules": []}, "LoHaConfig": {"r": 2}, "VeraConfig": {"r": 2}}[kind]
    model = peft.get_peft_model(nets.tiny(), getattr(peft, kind)(target_modules=["q_proj", "v_proj"], **more))
    assert cl.train(model, texts(), scheme="smofi", **SMALL).history[-1].steps > 0


@pytest.mark.parametrize("scheme", ["smofi", "cyclesfl", "psl"])
def test_the_other_protocol(scheme: str) -> None:
    model = nets.with_lora(nets.tiny())
    history = cl.train(model, texts(), scheme=scheme, protocol="cyclesl", **{**SMALL, "local_epochs": 1}).history
    assert [record.steps for record in history] == [3, 3]


CALLED: list[str] = []


def test_frozen_layers_below_the_first_adapter_are_not_differentiated() -> None:
    """With adapters in the last layer alone, a backward pass ends there, on whichever side of the cut it is."""
    for cut in (0, 1):
        model = nets.with_lora(nets.tiny(), layers_to_transform=[1])
        for index in (0, 1):
            layer = model.get_submodule(f"base_model.model.model.layers.{index}.mlp")
            layer.register_full_backward_hook(lambda *_, at=index: CALLED.append(f"layer {at}"))
        CALLED.clear()
        cl.train(model, texts(), scheme="sflv2", **{**SMALL, "cut": cut, "rounds": 1})
        assert set(CALLED) == {"layer 1"}


def test_a_classifier_of_texts() -> None:
    """BERT with a new head, on padded rows with masks."""
    model = nets.with_lora(nets.make("bert"), target_modules=["query", "value"], modules_to_save=["classifier"])
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(2, nets.VOCABULARY, (12, 8), generator=draw)
    mask = (torch.arange(8) < torch.randint(3, 9, (12, 1), generator=draw)).long()
    y = (ids[:, 0] > 25).long()
    rows = ({"input_ids": ids * mask, "attention_mask": mask}, y)
    options = {**SMALL, "loss": nn.functional.cross_entropy, "rounds": 12, "optimizer": cl.Adam(lr=2e-2)}
    result = cl.train(model, [rows, rows], test=rows, scheme="smofi", **options)
    assert result.history[-1].accuracy is not None and result.history[-1].accuracy > 0.9
    assert result.model.base_model.model.classifier.modules_to_save["default"].weight.requires_grad  # type: ignore


def test_a_classifier_of_images() -> None:
    model = nets.with_lora(
        nets.make("vit", num_labels=3), target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"]
    )
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    options = {**SMALL, "loss": nn.functional.cross_entropy}
    result = cl.train(model, [(x, torch.arange(8) % 3)] * 2, test=(x, torch.arange(8) % 3), scheme="smofi", **options)
    assert result.history[-1].accuracy is not None
