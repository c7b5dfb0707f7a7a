"""The flags of `cutlayer serve` and `cutlayer join`, which train with clients on other machines."""

from __future__ import annotations

import argparse
from typing import Any

from cutlayer.cli import flags
from cutlayer.cli.output import add_log
from cutlayer.cli.parser import later
from cutlayer.cli.train import add_pages, add_track

SERVE = """\
Wait for clients, then train with them: `cutlayer run`, but for the clients, which are other machines that
`cutlayer join`. Writes the same run directory. Interrupted? `cutlayer resume OUT` goes on, and the clients come back
by themselves.

examples:
  cutlayer certs init --host train.example.org && cutlayer certs client ward-3
  cutlayer serve --task fashion_mnist --scheme smofi --min-clients 4 --rounds 20 --listen 0.0.0.0:7443 \\
                 --certs certs --out runs/x
  cutlayer serve --task digits --min-clients 2 --rounds 5 --out runs/y        on this machine alone, nothing encrypted
  cutlayer serve --model hf:Qwen/Qwen3-0.6B --peft lora --peft.r 8 --cut 4 --labels stay --data test.parquet \
                 --tokens 128 --certs certs --listen 0.0.0.0:7443         clients have the same base, which is not sent
"""
JOIN = """\
Take part in a training with your own data, which stay here: dial the server, train the front whenever it asks, and come
back by yourself when the connection breaks or the server restarts. Ends when the run ends.

examples:
  cutlayer join --server train.example.org:7443 --certs ward-3 --data ./my-data
  cutlayer join --server 127.0.0.1:7443 --name a --data part.npz             on the server's machine, nothing encrypted
  cutlayer join --server 127.0.0.1:7443 --name a --data part.npz --model my_nets:build        a model of one's own
  cutlayer join --server train.example.org:7443 --certs ward-3 --data notes.parquet --model hf:Qwen/Qwen3-0.6B
"""
SETTINGS = {  # flags of serve besides those of a run; their defaults are cutlayer.Net's
    "listen": ("HOST:PORT", "where clients find the server (default: 127.0.0.1:7443)"),
    "certs": ("FOLDER", "the folder of `cutlayer certs`, or the server's in it; without it, loopback only"),
    "min_clients": ("INT", "clients that must come before the run begins (default: 2)"),
    "quorum": ("FLOAT", "share of a round's clients that must finish it; otherwise it is tried again (default: 0.5)"),
    "over_selection": ("FLOAT", "ask so many times as many clients as a round needs (default: 1)"),
    "attempts": ("INT", "tries at one round, before giving up (default: 20)"),
    "deadline": ("SECONDS", "for a step, until it is known how long steps take (default: 60)"),
    "grace": ("SECONDS", "for known clients to come back after a restart (default: 60)"),
    "code": ("{raw,float16,int8}", "activations and gradients on the wire: shorter, at a loss (default: raw)"),
}
SWITCHES = {
    "insecure": "serve other machines without certificates: anybody may read and change everything",
    "zstd": "compress what is sent, at no loss",
    "give_front": "give clients the front at the end (default: yes)",
}
SIMULATED = (  # fields that only `run` takes, because it simulates its clients
    *("partition", "clients", "holdout", "validation", "profile", "kappa", "count_sync", "sequential"),
    *("backend", "stack", "ranks", "memory_limit", "data_on_device"),
)
JOINING: dict[str, tuple[str, str | None, str]] = {  # metavar, default (None: it must be given), help
    "server": ("HOST:PORT", None, "who to dial"),
    "data": ("PATH", None, "your rows, in any form `run --data` takes, or as the server's task is published"),
    "certs": ("FOLDER", "", "your folder of `cutlayer certs client`, or the one with all of them, and --name"),
    "name": ("NAME", "", "who you are, where no certificate says it; each client its own"),
    "out": ("FOLDER", "joined", "for what you keep between rounds, and for the front at the end"),
    "x-column": ("NAME", "x", "the inputs' array or column"),
    "y-column": ("NAME", "y", "the labels' array or column"),
    "patience": ("SECONDS", "3600", "without a server, before giving up"),
    "device": ("DEVICE", "cpu", "torch device: cpu, cuda, cuda:1, mps, ..., or auto: the one there is"),
}
LIMITS = {
    "steps": "more steps in a round than this (default: 100000)",
    "rate": "a learning rate above this (default: 100)",
    "batch": "more samples in a step than this (default: 65536)",
    "parameters": "a model of more parameters than this (default: a billion)",
}


def add(commands: Any) -> None:
    serve = commands.add_parser(
        "serve", help="train with clients on other machines", description=SERVE, usage="cutlayer serve [FLAGS]"
    )
    group = serve.add_argument_group("clients")
    for name, (metavar, words) in SETTINGS.items():
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, dest=f"net.{name}", metavar=metavar, default=argparse.SUPPRESS, help=words)
    for name, words in SWITCHES.items():
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=f"net.{name}",
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=words,
        )
    serve.add_argument("--config", metavar="FILE", help="begin with the values of a TOML file")
    serve.add_argument("--preset", metavar="NAME", help="begin with the values of `cutlayer list presets`")
    serve.add_argument("--out", metavar="FOLDER", help="where to write (default: runs/TASK-...)")
    serve.add_argument("--overwrite", action="store_true", help="replace a run that is there already")
    serve.add_argument("--quiet", action="store_true", help="no progress")
    add_pages(serve)
    add_track(serve)
    add_log(serve)
    flags.add_config(serve, hidden=(*SIMULATED, "partition."))
    serve.set_defaults(run=later("serve"))
    _add_join(commands)


def _add_join(commands: Any) -> None:
    join = commands.add_parser("join", help="be a client of `cutlayer serve`", description=JOIN)
    for name, (metavar, default, words) in JOINING.items():
        shown = f" (default: {default})" if default else ""
        join.add_argument(f"--{name}", metavar=metavar, default=default, help=words + shown, required=default is None)
    for name, words in LIMITS.items():
        about = f"leave if the server asks for {words}"
        join.add_argument(f"--limit-{name}", type=float, metavar="FLOAT" if name == "rate" else "INT", help=about)
    join.add_argument(
        "--insecure",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="dial another machine without certificates (default: no)",
    )
    join.add_argument("--quiet", action="store_true", help="say nothing but errors")
    flags.add_config(join, ("model",), short=())
    add_log(join)
    join.set_defaults(run=later("serve:join"))
