"""A server and four clients as separate processes on this machine, with mutual TLS and handwritten digits.

    python examples/deploy/run.py [FOLDER]

One client is killed in the middle of round 2: the round goes on without it, it is started again, and takes part from
then on. On real machines these are the same commands, each on its own (docs/deploy.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

CLIENTS = [f"client-{j}" for j in range(4)]
CUTLAYER = [sys.executable, "-m", "cutlayer"]


def start(*words: str) -> subprocess.Popen[str]:
    said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}  # the log is on standard error
    return subprocess.Popen([*CUTLAYER, *words], cwd=FOLDER, **said)  # noqa: S603


def until(process: subprocess.Popen[str], words: str) -> str:
    """What a process says, shown, up to a line with these words in it."""
    for line in process.stdout or ():
        print(f"  {line.rstrip()}")
        if words in line:
            return line
    raise SystemExit(f"it ended before it said {words!r}")


def join(name: str, port: str) -> subprocess.Popen[str]:
    words = f"join --server localhost:{port} --certs certs/{name} --data parts/{name}.npz --patience 60"
    return start(*words.split())


FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="cutlayer-deploy-"))
FOLDER.mkdir(parents=True, exist_ok=True)
begin = f"certs init; certs client {' '.join(CLIENTS)}; partition --clients 4 --dirichlet 0.5 --export parts"
assert not any(start(*words.split()).wait() for words in begin.split("; "))

serve = "serve --scheme smofi --rounds 6 --local-epochs 1 --min-clients 4 --listen 127.0.0.1:0 --certs certs --out run"
server = start(*serve.split())
port = until(server, "listening on").split()[2].rpartition(":")[2]
clients = {name: join(name, port) for name in CLIENTS}
until(clients["client-2"], "round 2: ")
clients["client-2"].kill()
print("  client-2 has been killed")
clients["client-2"] = join("client-2", port)

print(server.communicate()[0])
left = {name: client.wait() for name, client in clients.items()}
faults = [fault for line in (FOLDER / "run/journal.jsonl").open() for fault in json.loads(line)["faults"]]
print(f"exits: server {server.returncode}, {left}; left a round: {faults}; everything is in {FOLDER}")
sys.exit(any([server.returncode, *left.values()]) or not faults)
