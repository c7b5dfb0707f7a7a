"""The base exists once, however many clients train adapters on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer as cl
from tests.engine.test_mapped import Anonymous, status
from tests.forks import forked
from tests.hf import nets

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]
MIB = 2**20
WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 8}
ROWS, TOKENS, WORDS = 2, 16, 4000


def train(file: str, clients: int, adam: bool) -> None:
    """Train, and write down what the process needed, besides the packages that it loads."""
    options: dict[str, Any] = {"cut": 1, "rounds": 2, "batch_size": ROWS, "local_epochs": 1, "loss": cl.next_token}
    few = torch.randint(2, nets.VOCABULARY, (4, 5))
    cl.train(nets.with_lora(nets.tiny()), [(few, few)], threads=1, **options)
    before = status("RssAnon")
    model = nets.with_lora(nets.make("llama", 1, **WIDE, num_key_value_heads=8, vocab_size=WORDS), r=8)
    base = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
    adapters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rows = [torch.randint(2, WORDS, (2 * ROWS, TOKENS)) for _ in range(clients)]
    optimizer = cl.Adam(lr=1e-3) if adam else cl.SGD(lr=0.05)
    with Anonymous() as seen:
        cl.train(model, [(x, x) for x in rows], scheme="smofi", optimizer=optimizer, threads=1, **options)
    Path(file).write_text(json.dumps([seen.most - before, base, adapters, optimizer.moments]))


@pytest.mark.parametrize(("clients", "adam"), [(2, False), (20, False), (20, True)])
def test_peak_memory(tmp_path: Path, clients: int, adam: bool) -> None:
    """At most 1.3 times the base and, for each client and adapter weight, 8 bytes and 4 for each moment. (Activations
    would come on top; of so few tokens they are small.)"""
    nets.peft()
    file = tmp_path / "found.json"
    with forked(train, str(file), clients, adam) as child:
        assert child.wait() == 0, child.err[-2000:]
    peak, base, adapters, moments = json.loads(file.read_text())
    assert base >= 200 * MIB
    allowed = 1.3 * base + clients * adapters * (8 + 4 * moments)
    print(f"{clients} clients: {peak / MIB:.0f} MiB of {allowed / MIB:.0f}; base {base / MIB:.0f}")
    assert peak <= allowed
