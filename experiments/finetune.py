"""Fine-tune a small Llama with LoRA across a cut: four methods, one central training, and shorter codes on the wire.

    python experiments/finetune.py --data-dir DATA --out runs/finetune

A model of a million weights reads characters. It is pre-trained here on most roles of Shakespeare, and then tuned on
the others, one client for each role. The last fifth of a tuned role's text is the test, and the last fifth of what
remains is for the choice of learning rates. Rows do not overlap. Every finished run is a line in runs.jsonl, and the
same command does what is missing; with --report it only tells what there is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from scipy import stats
from torch import Tensor, nn

import cutlayer as cl

LENGTH, CLIENTS, FULL = 80, 12, 33  # characters of a row; tuned roles; rows of a role with its whole text
EPOCHS, BATCH, RATE = 6, 16, 2e-3  # of pre-training, with AdamW: a rise over 100 steps, then a cosine
CUT, ROUNDS, FEWER, TUNED_BATCH = 2, 10, 4, 4  # FEWER: rounds for the choice of learning rates
RATES, SEEDS, SEARCH_SEED, ROLES_SEED = (0.005, 0.02, 0.1, 0.5, 2.0), (0, 1, 2), 100, 0
WIRE_CLIENTS, WIRE_ROUNDS, WIRE_SEED = 6, 5, 0
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"scheme": "fedavg"},
    "SFLV2": {"scheme": "sflv2"},
    "SMoFi + FedAvgM": {"scheme": cl.SMoFi(alpha=-0.1), "update": cl.FedAvgM(beta=0.3)},
    "CycleSFL": {"scheme": "cyclesfl"},
    "central": {"scheme": "fedavg", "protocol": "cyclesl"},  # one client has all rows, and its momentum lives on
}
Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Texts:
    """Rows of characters: of the roles for pre-training together, and of each tuned role."""

    others: Tensor
    roles: list[str]
    tuned: list[Tensor]

    def clients(self, kind: str) -> list[Rows]:
        """What each client trains on: four fifths of its rows; for a choice, four fifths of those."""
        end = _held_out(kind)[0]
        return [(rows[:end], rows[:end]) for rows in self.tuned]

    def test(self, kind: str) -> Rows:
        """The rows that follow those."""
        start, end = _held_out(kind)
        held = torch.cat([rows[start:end] for rows in self.tuned])
        return held, held


def _held_out(kind: str) -> tuple[int, int]:
    """The first and the last of a role's rows that are held out: a fifth; for a choice, a fifth of the others."""
    last = FULL - FULL // 5
    return (last - last // 5, last) if kind == "validation" else (last, FULL)


def texts(data_dir: Path) -> Texts:
    """Join the windows of each role to its text again, and cut that into rows without overlap."""
    windows = cl.dataset("shakespeare", data_dir).train
    assert windows.owners is not None
    rows: dict[str, Tensor] = {}
    for role, name in enumerate(windows.owner_names):
        own = np.flatnonzero(windows.owners == role)
        text = np.concatenate([windows.x[own[0]], windows.y[own]]).astype(np.int64)
        assert (windows.x[own[-1]] == text[-LENGTH - 1 : -1]).all(), f"{name}: windows with a gap between them"
        rows[name] = torch.from_numpy(text[: len(text) // LENGTH * LENGTH].reshape(-1, LENGTH))
    whole = [name for name, own in rows.items() if len(own) == FULL]
    tuned = sorted(np.random.default_rng(ROLES_SEED).choice(whole, CLIENTS, replace=False).tolist())
    others = torch.cat([own for name, own in rows.items() if name not in tuned])
    return Texts(others, tuned, [rows[name] for name in tuned])


def perplexity(model: nn.Module, rows: Rows) -> float:
    metric = cl.Perplexity()
    with torch.no_grad():
        for part in rows[0].split(64):
            metric.update(model(input_ids=part).logits, part)
    return metric.compute()


def pretrain(rows: Tensor, watched: Rows) -> tuple[nn.Module, list[float]]:
    """Return a base, and its perplexity on other rows after every epoch."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=80, hidden_size=128, intermediate_size=344, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model, seen = transformers.LlamaForCausalLM(config), []
    steps = EPOCHS * (len(rows) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    for epoch in range(EPOCHS):
        for batch in rows[torch.randperm(len(rows))].split(BATCH)[: len(rows) // BATCH]:
            optimizer.zero_grad()
            cl.next_token(model(input_ids=batch).logits, batch).backward()
            optimizer.step()
            schedule.step()
        seen.append(perplexity(model, watched))
        print(f"pre-training: epoch {epoch + 1} of {EPOCHS}, perplexity {seen[-1]:.3f}", flush=True)
    return model, seen


def adapted(base: Path, seed: int) -> nn.Module:
    """The base with new adapters: A drawn from the seed, B zero."""
    torch.manual_seed(seed)
    adapters = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    return get_peft_model(transformers.LlamaForCausalLM.from_pretrained(base), adapters)


@dataclass(frozen=True)
class Job:
    """One line of runs.jsonl: what is trained. kind: "validation", "test" or "wire", where `code` is the wire's."""

    kind: str
    method: str
    lr: float
    seed: int
    code: str = ""

    def options(self) -> dict[str, Any]:
        return METHODS[self.method] | {
            "cut": CUT, "loss": cl.next_token, "metric": cl.Perplexity(), "seed": self.seed,
            "rounds": {"validation": FEWER, "test": ROUNDS, "wire": WIRE_ROUNDS}[self.kind],
            "optimizer": cl.SGD(lr=self.lr, momentum=0.9, weight_decay=0.0), "batch_size": TUNED_BATCH,
            "local_epochs": 1, "last_batch": "keep",
        }  # fmt: skip

    def run(self, data: Texts, base: Path, scratch: Path) -> dict[str, Any]:
        """Train, and return the figures."""
        model, test, options = adapted(base, self.seed), data.test(self.kind), self.options()
        clients = data.clients(self.kind)[: WIRE_CLIENTS if self.kind == "wire" else CLIENTS]
        if self.method == "central":
            x = torch.cat([rows for rows, _ in clients])
            clients, options["local_steps"] = [(x, x)], math.ceil(len(x) / TUNED_BATCH)
        measured: dict[str, Any] = {}
        try:
            if self.code in ("", "simulator"):
                result = cl.train(model, clients, test, threads=1, **options)
            else:
                result, measured = over_network(model, clients, test, self.code, scratch, options)
        except cl.Diverged as error:
            return {"perplexity": None, "diverged": str(error)}
        last = result.history[-1]
        return {
            "perplexity": last.metric, "curve": [record.metric for record in result.history],
            "train_loss": [record.train_loss for record in result.history],
            "up": last.bytes_up / len(clients), "down": last.bytes_down / len(clients), "steps": last.steps,
            "samples": last.samples, "weights": digest(result.model), **measured,
        }  # fmt: skip


def digest(model: nn.Module) -> str:
    """The SHA-256 of what was trained."""
    trained = [tensor.numpy().tobytes() for name, tensor in sorted(model.state_dict().items()) if "lora_" in name]
    return hashlib.sha256(b"".join(trained)).hexdigest()


def over_network(
    model: nn.Module, clients: list[Rows], test: Rows, code: str, scratch: Path, options: dict[str, Any]
) -> tuple[cl.Result, dict[str, Any]]:
    """Train with a server and clients in threads of this process, over sockets; count the bytes of their streams."""
    threads, services = list[threading.Thread](), list[Any]()

    def begin(service: Any) -> None:
        services.append(service)
        for j, rows in enumerate(clients):
            given = {"model": model, "name": f"client-{j}", "out": scratch / code / str(j)}
            at = f"127.0.0.1:{service.hub.port}"
            threads.append(threading.Thread(target=cl.join, args=(at, rows), kwargs=given, daemon=True))
            threads[-1].start()

    net = cl.Net("127.0.0.1:0", min_clients=len(clients), quorum=1.0, deadline=600.0, code=code, give_front=False)
    result = cl.serve(model, test, net=net, watch=begin, **options)
    for thread in threads:
        thread.join(60)
    hub = services[0].hub  # all streams have ended, and it has their bytes
    each, faults = len(clients) * WIRE_ROUNDS, [fault for record in result.history for fault in record.faults]
    return result, {"wire_up": hub.up / each, "wire_down": hub.down / each, "faults": faults}


class Ledger:
    """The finished runs, in a file with a line for each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.done: dict[str, dict[str, Any]] = {json.dumps(line["job"]): line for line in lines}

    def get(self, job: Job) -> dict[str, Any] | None:
        return self.done.get(json.dumps(asdict(job)))

    def best(self, method: str) -> float | None:
        """The learning rate with the lowest perplexity on validation rows; None until all have been tried."""
        tried = [(lr, self.get(Job("validation", method, lr, SEARCH_SEED))) for lr in RATES]
        scores = {lr: line["perplexity"] or math.inf for lr, line in tried if line is not None}
        return min(scores, key=lambda lr: scores[lr]) if len(scores) == len(RATES) else None

    def add(self, job: dict[str, Any], began: tuple[float, float], figures: dict[str, Any]) -> None:
        """Write a line; `began`: the wall clock and the CPU's at the start."""
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
        seconds = {"seconds": time.perf_counter() - began[0], "cpu_seconds": time.process_time() - began[1]}
        line = {"job": job, **figures, **seconds, "commit": commit.stdout.strip()}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.done[json.dumps(job)] = line
        print(*job.values(), f"perplexity {line['perplexity']}, {line['cpu_seconds']:.0f} CPU seconds", flush=True)

    def missing(self) -> Iterator[Job]:
        """Runs that are still to do, in order; rates are chosen before they are used."""
        for method in METHODS:
            for lr in RATES:
                yield Job("validation", method, lr, SEARCH_SEED)
        for seed in SEEDS:
            for method in METHODS:
                yield Job("test", method, self.best(method) or 0.0, seed)
            for code in ("simulator", "raw", "float16", "int8") if seed == WIRE_SEED else ():
                yield Job("wire", "SMoFi + FedAvgM", self.best("SMoFi + FedAvgM") or 0.0, seed, code)


def interval(values: list[float]) -> list[float]:
    """The mean, and half of its 95 % t interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return [statistics.fmean(values), float(half)]


def summary(ledger: Ledger) -> dict[str, Any]:
    """What came out: for each method its rate and its perplexities, and differences seed by seed."""
    methods: dict[str, Any] = {}
    for method in METHODS:
        lines = [ledger.get(Job("test", method, ledger.best(method) or 0.0, seed)) for seed in SEEDS]
        values = [line["perplexity"] for line in lines if line and line["perplexity"]]
        if len(values) == len(SEEDS) and lines[0]:
            methods[method] = {"lr": ledger.best(method), "perplexity": interval(values), "seeds": values}
            methods[method] |= {key: lines[0][key] for key in ("up", "down", "steps", "samples")}
            methods[method]["cpu_seconds"] = statistics.fmean(line["cpu_seconds"] for line in lines if line)
    for figures in methods.values():
        for other in ("FedAvg", "central"):
            if other in methods:
                pairs = zip(figures["seeds"], methods[other]["seeds"], strict=True)
                figures[f"minus {other}"] = interval([mine - theirs for mine, theirs in pairs])
    return methods


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the folder that holds shakespeare/")
    parser.add_argument("--out", type=Path, default=Path("runs/finetune"), help="folder for base and runs.jsonl")
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"), help="where results go")
    parser.add_argument("--report", action="store_true", help="train nothing: write and print what is finished")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    args.out.mkdir(parents=True, exist_ok=True)
    ledger, base, start = Ledger(args.out / "runs.jsonl"), args.out / "base", {"kind": "base"}
    if not args.report:
        data = texts(args.data_dir)
        if json.dumps(start) not in ledger.done:
            began = time.perf_counter(), time.process_time()
            model, curve = pretrain(data.others, data.test("validation"))
            model.save_pretrained(base)
            trained = sum(p.numel() for p in adapted(base, 0).parameters() if p.requires_grad)
            held = {"base_bytes": sum(p.nbytes for p in model.parameters()), "adapter_bytes": 8 * trained * CLIENTS}
            rows = {"pretraining_rows": len(data.others), "test_rows": len(data.test("test")[0]), "roles": data.roles}
            ledger.add(start, began, {"perplexity": perplexity(model, data.test("test")), "curve": curve} | held | rows)
        for job in ledger.missing():
            if ledger.get(job) is None:
                began = time.perf_counter(), time.process_time()
                ledger.add(asdict(job), began, job.run(data, base, args.out / "clients"))
    methods = summary(ledger)
    args.json.write_text(json.dumps({"methods": methods, "runs": list(ledger.done.values())}, indent=1) + "\n")
    for method, figures in methods.items():
        mean, half = figures["perplexity"]
        print(f"{method}: lr {figures['lr']}, perplexity {mean:.3f} ± {half:.3f}, {figures['cpu_seconds']:.0f} s")


if __name__ == "__main__":
    main()
