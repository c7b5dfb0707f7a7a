"""`cutlayer certs`: an authority of one's own, and who it vouches for."""

from __future__ import annotations

import argparse
import datetime
import socket
from pathlib import Path
from typing import Any

import rich.box
import rich.table

from cutlayer.cli.output import console
from cutlayer.extras import needs
from cutlayer.files import as_path

ABOUT = """\
Certificates for a server and its clients, signed by an authority of your own. Each ends up in a folder of its own:
carry FOLDER/NAME to the client NAME, keep FOLDER/server on the server, and FOLDER/ca wherever is safest; the key in it
is needed only to make certificates.

examples:
  cutlayer certs init --host train.example.org --host 10.0.0.7    an authority, and the server's certificate
  cutlayer certs client ward-3                                    a client's: certs/ward-3
  cutlayer certs revoke ward-3                                    from now on it is refused
  cutlayer certs list
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "certs", help="certificates for a server and its clients", description=ABOUT, usage="cutlayer certs ACTION"
    )
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True, prog="cutlayer certs")
    init = actions.add_parser("init", help="an authority, and the server's certificate")
    init.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="a name or address by which clients reach the server; may be repeated (default: this machine's)",
    )
    client = actions.add_parser("client", help="a client's certificate, or several clients'")
    revoke = actions.add_parser("revoke", help="refuse a client from now on")
    for action in (client, revoke):
        action.add_argument("names", nargs="+", metavar="NAME", help="letters, digits, '.', '_' or '-'")
    known = actions.add_parser("list", help="who has a certificate, until when, and who is revoked")
    for action in (init, client, revoke, known):
        action.add_argument(
            "--folder", default="certs", metavar="FOLDER", help="where all of them are (default: certs)"
        )
        action.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    needs("net")
    from cutlayer.net import identity

    folder = as_path("folder", args.folder)
    match args.action:
        case "init":
            hosts = args.host or [socket.gethostname(), "localhost", "127.0.0.1"]
            made = identity.create(folder, hosts)
            console.print(f"a server reached as {', '.join(hosts)}; next: cutlayer certs client NAME", markup=False)
        case "client":
            made = identity.issue(folder, *args.names)
        case "revoke":
            made = [identity.revoke(folder, *args.names)]
            console.print(f"{', '.join(args.names)}: refused from the next round on", markup=False)
            known = {path.parent.name for path in folder.glob("*/cert.pem")}
            if unseen := [name for name in args.names if name not in known]:
                console.print(f"no certificate of {', '.join(unseen)} is in {folder}: is that the name?", markup=False)
        case _:
            _list(folder)
            return 0
    console.print("wrote " + ", ".join(str(path) for path in made), soft_wrap=True, markup=False)
    return 0


def _list(folder: Path) -> None:
    from cutlayer.net import identity

    table = rich.table.Table("name", "valid until", "", box=rich.box.SIMPLE)
    revoked, now = identity.revoked(folder / "server"), datetime.datetime.now(datetime.UTC)
    known = identity.known(folder)
    for name, until in known:
        state = "revoked" if name in revoked else "expired" if until < now else ""
        table.add_row(name, f"{until:%Y-%m-%d}", state)
    for name in sorted(revoked - {name for name, _ in known}):
        table.add_row(name, "-", "revoked")
    console.print(table)
