"""Keep what `cutlayer reproduce` found: its numbers, with the commit and the machine they come from.

python experiments/collect.py runs/smofi            writes experiments/reproduced/smofi-table-1.json and .png, ...
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE / "reproduced"


def commit() -> str:
    """The commit of this checkout; with a plus where the code differs from it."""
    code = ["status", "--porcelain", "--untracked-files=no", "../cutlayer", "*.py"]
    said = [
        subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
        for words in (["rev-parse", "--short=12", "HEAD"], code)
    ]
    return said[0] + "+" * bool(said[1])


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores, {names[0]}" if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder given to `cutlayer reproduce` as --out")
    args = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    for table in sorted(args.out.glob("*/table.json")):
        found = json.loads(table.read_text())
        for cell in found["cells"]:
            cell.pop("runs", None)
        found["command"] = found["command"].partition(" --out ")[0]
        cells = [json.dumps(cell, ensure_ascii=False) for cell in found.pop("cells")]
        about = json.dumps({"commit": commit(), "machine": machine(), **found}, indent=1, ensure_ascii=False)
        name = KEPT / f"{table.parent.name}.json"
        name.write_text(about[: about.rindex("\n}")] + ',\n "cells": [\n  ' + ",\n  ".join(cells) + "\n ]\n}\n")
        json.loads(name.read_text())
        picture = table.parent / "figure.png"
        if picture.exists():
            shutil.copy(picture, name.with_suffix(".png"))
        print(name)


if __name__ == "__main__":
    main()
