"""`run`, `resume`, `serve` and `join` with a base on disk and text."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file

import cutlayer as cl
from cutlayer.cli.main import main
from tests.hf import nets
from tests.network.test_restart import free_port

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]
LORA = "--peft lora --peft.r 2 --peft.targets q_proj,v_proj"
SMALL = "--tokens 12 --cut 1 --scheme smofi --rounds 2 --batch-size 4 --local-epochs 1 --quiet"
WORDS = ["the", "king", "hath", "no", "love", "for", "thee", "and", "thou", "art", "a", "fool", "my", "lord", "so"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUTLAYER_CACHE", str(tmp_path / ".cache"))


@pytest.fixture
def base() -> Path:
    """A base with a tokenizer of characters, as a user has one on disk."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed (make test-extras has it)")
    names = {"<end>": 0, "<unk>": 1, **{c: i for i, c in enumerate(" abcdefghijklmnopqrstuvwxyz", start=2)}}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    fast = nets.transformers().PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>", unk_token="<unk>")
    fast.save_pretrained("base")
    nets.tiny(vocab_size=len(fast)).save_pretrained("base")  # type: ignore[operator]
    texts = [" ".join(WORDS[(3 * i + k * k) % len(WORDS)] for k in range(12)) for i in range(24)]
    roles = [f"role{i % 3}" for i in range(24)]
    pyarrow.parquet.write_table(pa.table({"text": texts, "role": roles}), "plays.parquet")
    for role in range(2):
        mine = [text for text, whose in zip(texts, roles, strict=True) if whose == f"role{role}"]
        Path(f"part{role}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in mine))
    return Path("base")


def run(line: str) -> int:
    try:
        return main(line.split())
    except SystemExit as end:
        return int(end.code or 0)


def test_run_and_resume(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"run --model hf:base {LORA} --data plays.parquet --owner-column role {SMALL}"
    assert run(f"{command} --out whole") == 0
    history = cl.open("whole").history
    assert all(record.metric is not None and record.accuracy is None for record in history)
    assert history[-1].participants == 3
    assert run(f"{command} --out again --rounds 1") == 0
    shutil.copytree("whole", "cut")
    assert sorted(path.name for path in Path("whole/adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    model = cl.load("whole/adapter")  # it knows its base
    theirs = nets.peft().PeftModel.from_pretrained(
        nets.transformers().AutoModelForCausalLM.from_pretrained("base", use_safetensors=True), "whole/adapter"
    )
    rows = torch.randint(2, 20, (2, 6))
    torch.testing.assert_close(model(rows).logits, theirs.eval()(rows).logits)
    weights = load_file("base/model.safetensors")
    first = next(name for name in weights if "q_proj" in name)
    save_file({**weights, first: weights[first] + 0.01}, "base/model.safetensors", {"format": "pt"})
    capsys.readouterr()
    assert run("resume whole --quiet") == 2
    assert "the weights of its model that are not trained have changed" in capsys.readouterr().err


def test_serve_and_join(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("base", "other")
    weights = load_file("other/model.safetensors")
    first = next(name for name in weights if "q_proj" in name)
    save_file({**weights, first: weights[first] + 0.01}, "other/model.safetensors", {"format": "pt"})
    port, codes = free_port(), dict[str, int]()
    serve = f"serve --model hf:base {LORA} --data plays.parquet --data-test plays.parquet {SMALL} --labels stay"
    lines = {
        "server": f"{serve} --listen 127.0.0.1:{port} --min-clients 2 --out served",
        "a": f"join --server 127.0.0.1:{port} --name a --data part0.jsonl --model hf:base --out a --quiet",
        "b": f"join --server 127.0.0.1:{port} --name b --data part1.jsonl --model hf:base --out b --quiet",
        "c": f"join --server 127.0.0.1:{port} --name c --data part1.jsonl --model hf:other --out c --quiet",
        "d": f"join --server 127.0.0.1:{port} --name d --data part1.jsonl --out d --quiet",
    }

    def command(name: str) -> None:
        codes[name] = run(lines[name])

    threads = [threading.Thread(target=command, args=(name,), daemon=True) for name in ("server", "c", "d")]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join(120)
    assert (codes["c"], codes["d"]) == (2, 2)
    said = capsys.readouterr().err
    assert "its frozen weights have the digest" in said
    assert "the server trains hf:base, a base that is not sent: expected the same model here, with --model" in said
    more = [threading.Thread(target=command, args=(name,), daemon=True) for name in ("a", "b")]
    for thread in more:
        thread.start()
    for thread in (*more, threads[0]):
        thread.join(120)
    assert codes == {"server": 0, "a": 0, "b": 0, "c": 2, "d": 2}
    assert (Path("served") / "adapter" / "adapter_model.safetensors").is_file()
    assert cl.open("served").history[-1].metric is not None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--model hf:nowhere --tokens 12", "hf:nowhere': it has no tokenizer that can be loaded"),
        (f"--model cnn {LORA} --tokens 12", "peft = {'name': 'lora'"),
        ("--model hf:base --peft lora --peft.r 0 --tokens 12", "peft.r = 0: expected a whole number, at least 1"),
        ("--model hf:base --peft lora --peft.targets nothing --tokens 12", "peft.targets = 'nothing': no adapters for"),
        ("--model hf:base --tokens 65", "65 tokens in a row"),
        ("--model hf:base --tokens 5000", "at least one row of 5000 tokens"),
        ("--model hf:base --tokens 12 --partition dirichlet", "text has no classes"),
        ("--model hf:base --tokens 12 --x-column words", "columns ['text', 'role'], expected 'words'"),
    ],
)
def test_bad_input(base: Path, capsys: pytest.CaptureFixture[str], flags: str, words: str) -> None:
    common: Any = "--data plays.parquet --cut 1 --rounds 1 --batch-size 4 --clients 3 --out run --quiet"
    assert run(f"run {flags} {common}") == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1, said
    assert not Path("run").exists()
