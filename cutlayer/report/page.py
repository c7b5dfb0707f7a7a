"""The report: one self-contained HTML page, and the table and the figure as files beside it."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cutlayer.core import toml
from cutlayer.core.files import write_aside
from cutlayer.report import curves, table
from cutlayer.report.measure import Measure
from cutlayer.report.paired import differences
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


def write(out: Path, measure: Measure = Measure(), quantities: Sequence[str] = ()) -> tuple[Table, list[Path]]:
    """Write table, figures and page of a run or comparison, from its files; return the table and the paths.
    `quantities`: what the learning curves show."""
    source = out / ("compare.toml" if (out / "compare.toml").exists() else "config.toml")
    figures = tabulate(gather(out), measure, _validated(out))
    pictures = {"curves.png": curves.draw(figures, quantities)}
    parameter = curves.swept(figures)
    if parameter is not None:
        pictures["sweep.png"] = curves.draw_sweep(figures, parameter)
    whole = page(out.resolve().name, figures, list(pictures.values()), source.read_text(encoding="utf-8"))
    files = {
        **pictures,
        "table.md": table.for_markdown(figures).encode(),
        "table.json": table.for_json(figures).encode(),
        "report.html": whole.encode(),
    }
    for name, content in files.items():
        write_aside(out / name, content)
    return figures, [out / name for name in files]


def _validated(out: Path) -> bool:
    """Whether the runs were tested on validation rows."""
    both = out / "compare.toml"
    values = toml.read(both).get("base", {}) if both.exists() else toml.read(out / "config.toml")
    return values.get("validation") is not None


def page(title: str, figures: Table, pictures: Sequence[bytes], config: str) -> str:
    """Return the HTML text."""
    main = tabular(table.headings(figures), [table.cells(row, figures) for row in figures.rows])
    paired = [table.paired_cells(one) for one in differences(figures)]
    runs = "".join(_rounds(row) for row in figures.rows)
    body = f"""{note(table.caption(figures))}
{main}
{tabular(table.PAIRED, paired) + note(table.paired_caption(figures)) if paired else ""}
{"".join(image(picture, "Learning curves") for picture in pictures)}
{note("Lines: mean over seeds. Bands: lowest to highest seed.")}
<h2>Rounds</h2>{runs}
<h2>Configuration</h2><pre>{html.escape(config)}</pre>"""
    return document(title, body)


def document(title: str, body: str) -> str:
    """Return a whole page: one file that needs no other."""
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)} - cutlayer</title><style>{STYLE}</style>
<h1>{html.escape(title)}</h1>
{body}
</html>
"""


def note(words: str) -> str:
    return f'<p class="note">{html.escape(words)}</p>'


def image(picture: bytes, words: str) -> str:
    """Return a picture inside the page."""
    return f'<p><img alt="{html.escape(words)}" src="data:image/png;base64,{base64.b64encode(picture).decode()}"></p>'


def tabular(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in HTML."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table>"


def _row(cells: Sequence[str]) -> str:
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
