"""`cutlayer certs`: an authority of your own, and the certificates that it signs."""

from __future__ import annotations

import argparse
import datetime
import socket
from pathlib import Path
from typing import Any

import rich.box
import rich.table

from cutlayer.cli.output import console
from cutlayer.core.extras import needs
from cutlayer.core.files import as_path
from cutlayer.errors import expect

ABOUT = """\
Certificates for a server and its clients, signed by an authority of your own. Each ends up in a folder of its own:
carry FOLDER/NAME to the client NAME, keep FOLDER/server on the server, and FOLDER/ca wherever is safest; the key in it
is needed only to make certificates.

examples:
  cutlayer certs init --host train.example.org --host 10.0.0.7    an authority, and the server's certificate
  cutlayer certs client ward-3                                    a client's: certs/ward-3
  cutlayer certs renew                                            whatever ends within 30 days
  cutlayer certs renew ward-3 server                              or these; the server takes its own without a restart
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
    renew = actions.add_parser("renew", help="new certificates for those that end within 30 days, or for whom you name")
    _renewal(renew)
    revoke = actions.add_parser("revoke", help="refuse a client from now on")
    for action in (client, revoke):
        action.add_argument("names", nargs="+", metavar="NAME", help="letters, digits, '.', '_' or '-'")
    known = actions.add_parser("list", help="who has a certificate, until when, and who is revoked")
    for action in (init, client, renew):
        action.add_argument(
            "--days", type=int, metavar="N", help="how long it is valid (default: 730; the authority's: 3650)"
        )
    for action in (init, client, renew, revoke, known):
        action.add_argument(
            "--folder", default="certs", metavar="FOLDER", help="where all of them are (default: certs)"
        )
        action.set_defaults(run=_run)


def _renewal(renew: argparse.ArgumentParser) -> None:
    renew.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a client, `server`, or `ca`, the authority, which keeps its key (default: what ends within 30 days)",
    )
    renew.add_argument("--all", action="store_true", help="the server and every client that is not revoked")
    renew.add_argument(
        "--keep-key", action="store_true", help="certify the key that is there (default: a new one, but for `ca`)"
    )
    renew.add_argument(
        "--host", action="append", metavar="NAME", help="the server's names from now on; may be repeated"
    )


def _run(args: argparse.Namespace) -> int:
    needs("net")
    from cutlayer.network.transport import identity

    folder = as_path("folder", args.folder)
    match args.action:
        case "init":
            hosts = args.host or [socket.gethostname(), "localhost", "127.0.0.1"]
            made = identity.create(folder, hosts, identity.DAYS["server"] if args.days is None else args.days)
            console.print(f"a server reached as {', '.join(hosts)}; next: cutlayer certs client NAME", markup=False)
        case "client":
            days = identity.DAYS["client"] if args.days is None else args.days
            made = identity.issue(folder, *args.names, days=days)
        case "renew":
            made = _renew(folder, args)
        case "revoke":
            made = [identity.revoke(folder, *args.names)]
            console.print(f"{', '.join(args.names)}: refused from the next round on", markup=False)
            known = {path.parent.name for path in folder.glob("*/cert.pem")}
            if unseen := [name for name in args.names if name not in known]:
                console.print(f"no certificate of {', '.join(unseen)} is in {folder}: is that the name?", markup=False)
        case _:
            _list(folder)
            return 0
    if made:
        console.print("wrote " + ", ".join(str(path) for path in made), soft_wrap=True, markup=False)
    return 0


def _renew(folder: Path, args: argparse.Namespace) -> list[Path]:
    """Renew certificates, print where each one belongs, and return the files that were written."""
    from cutlayer.network.transport import renewal

    expect(not (args.all and args.names), "--all", " ".join(args.names), "no names beside it")
    due = args.names or renewal.due(folder)
    names = [name for name in renewal.everybody(folder) if name != "ca" or name in due] if args.all else due
    names += ["server"] if args.host and not args.names and "server" not in names else []
    if not names:
        console.print(f"nothing in {folder} ends within {renewal.WITHIN.days} days", markup=False)
        return []
    done = renewal.renew(folder, names, renewal.Terms(args.days, args.keep_key, tuple(args.host or ())))
    for one in done:
        console.print(f"{one.name}: valid until {one.until:%Y-%m-%d}; {_carry(folder, one.name)}", markup=False)
    return list(dict.fromkeys(path for one in done for path in one.files))


def _carry(folder: Path, name: str) -> str:
    if name == "ca":
        return "carry each folder's ca.pem to where the folder is in use; what it has signed stays good"
    home = folder / name
    if name == "server":
        return f"a server that runs with {home} takes it at the next connection; elsewhere, carry its three .pem files"
    return f"carry {home} to {name}, which takes it when it next connects; until then its old one is good"


def _list(folder: Path) -> None:
    from cutlayer.network.transport import identity, renewal
    from cutlayer.network.transport.certificates import left

    table = rich.table.Table("name", "valid until", "", box=rich.box.SIMPLE)
    known, now = identity.known(folder), datetime.datetime.now(datetime.UTC)
    revoked = identity.revoked(folder / "server") if (folder / "server").exists() else set()
    if (folder / "ca" / "ca.pem").exists():
        known = [("ca", identity.shown(folder / "ca" / "ca.pem").not_valid_after_utc), *known]
    ending = False
    for name, until in known:
        soon = left(until, renewal.WITHIN, now)
        state = "revoked" if name in revoked else "expired" if until < now else soon.partition(",")[0]
        ending = ending or (bool(soon) and name not in revoked)
        table.add_row(name, f"{until:%Y-%m-%d}", state)
    for name in sorted(revoked - {name for name, _ in known}):
        table.add_row(name, "-", "revoked")
    console.print(table)
    if ending:
        console.print("next: cutlayer certs renew", markup=False)
