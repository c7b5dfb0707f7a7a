"""The report: one self-contained HTML page, and the table and the figure as files beside it."""

from __future__ import annotations

import base64
import html
from dataclasses import asdict
from pathlib import Path

from cutlayer.core.files import write_aside
from cutlayer.report import curves, table
from cutlayer.report.summary import Row, Table, gather, tabulate

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0.2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.note { color: #666; font-size: 0.85rem; } img { width: 100%; }
table { border-collapse: collapse; width: 100%; } th, td { padding: 0.35rem 0.6rem; text-align: right; }
th { border-bottom: 2px solid #222; font-weight: 600; } td { border-bottom: 1px solid #e3e3e3; }
th:first-child, td:first-child { text-align: left; }
pre { background: #f6f6f6; padding: 0.8rem; overflow-x: auto; font-size: 0.8rem; }
summary { cursor: pointer; margin: 0.3rem 0; }
@media (prefers-color-scheme: dark) {
  body { background: #181818; color: #ddd; } pre { background: #222; } th { border-color: #ddd; }
  td { border-color: #333; } img { background: #fff; border-radius: 4px; }
}
"""
ROUND_COLUMNS = (
    *("n", "accuracy", "loss", "metric", "f1", "mcc", "participants", "skipped", "steps", "bytes_up", "bytes_down"),
)


def write(out: Path) -> tuple[Table, list[Path]]:
    """Write table, figure and page of a run or comparison, from its files; return the table and the paths."""
    figures = tabulate(gather(out))
    picture = curves.draw(figures)
    source = out / ("compare.toml" if (out / "compare.toml").exists() else "config.toml")
    files = {
        "curves.png": picture,
        "table.md": table.for_markdown(figures).encode(),
        "table.json": table.for_json(figures).encode(),
        "report.html": page(out.resolve().name, figures, picture, source.read_text(encoding="utf-8")).encode(),
    }
    for name, content in files.items():
        write_aside(out / name, content)
    return figures, [out / name for name in files]


def page(title: str, figures: Table, picture: bytes, config: str) -> str:
    """Return the HTML text."""
    head = "".join(f"<th>{html.escape(h)}</th>" for h in table.headings(figures))
    body = "".join(_row(table.cells(row, figures)) for row in figures.rows)
    image = base64.b64encode(picture).decode()
    runs = "".join(_rounds(row) for row in figures.rows)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)} - cutlayer</title><style>{STYLE}</style>
<h1>{html.escape(title)}</h1>
<p class="note">{html.escape(table.caption(figures))}</p>
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>
<p><img alt="Learning curves and drift of the server halves" src="data:image/png;base64,{image}"></p>
<p class="note">Lines: mean over seeds. Bands: lowest to highest seed.</p>
<h2>Rounds</h2>{runs}
<h2>Configuration</h2><pre>{html.escape(config)}</pre>
</html>
"""


def _row(cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _rounds(row: Row) -> str:
    """Return every round of every seed as HTML, collapsed."""
    parts = []
    for outcome in row.outcomes:
        head = "".join(f"<th>{name}</th>" for name in ROUND_COLUMNS)
        records = (asdict(record) for record in outcome.rounds)
        body = "".join(_row(tuple(_text(record[name]) for name in ROUND_COLUMNS)) for record in records)
        label = html.escape(f"{row.label}, seed {outcome.seed}: {outcome.status}, {len(outcome.rounds)} rounds")
        parts.append(f"<details><summary>{label}</summary><table><tr>{head}</tr>{body}</table></details>")
    return "".join(parts)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
