"""Every table and figure that can be reproduced, by paper and name. Loads no torch."""

from __future__ import annotations

from cutlayer.errors import unknown
from cutlayer.reproduce import cyclesl, smofi
from cutlayer.reproduce.item import Item

PAPERS: dict[str, dict[str, Item]] = {
    paper: {item.name: item for item in items}
    for paper, items in ((smofi.PAPER, smofi.ITEMS), (cyclesl.PAPER, cyclesl.ITEMS))
}
TITLES = {
    "smofi": "SMoFi: Step-wise Momentum Fusion for Split Federated Learning on Heterogeneous Data (Yang et al., 2026)",
    "cyclesl": "CycleSL: Server-Client Cyclical Update Driven Scalable Split Learning (2025)",
}


def papers(name: str | None) -> dict[str, dict[str, Item]]:
    """Return the items of one paper, or of all."""
    if name is None:
        return PAPERS
    if name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    return {name: PAPERS[name]}


def find(paper: str, name: str) -> Item:
    """Return an item; "table 1", "Table-1", "t1" and "figure-3" are names."""
    items = papers(paper)[paper]
    given = name.lower().replace(" ", "-").replace("_", "-")
    if given[:1] in "tf" and given[1:].isdecimal():
        given = f"{'table' if given[0] == 't' else 'figure'}-{given[1:]}"
    if given not in items:
        raise unknown(f"table or figure of {paper}", name, items)
    return items[given]
