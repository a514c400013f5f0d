"""The report as one HTML file that loads nothing and runs nothing.

Pictures are inlined as data, so a picture cannot run a script either. Everything that a model or a
person wrote is escaped, in one place: `_text`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from html import escape

from assay.analysis.report.content import (
    Cell,
    Figure,
    Report,
    Row,
    Section,
    Step,
    Summary,
    Table,
    Winner,
)
from assay.analysis.text import clean, short_id

#: Lines of a diff that are shown.
MAX_LINES = 2_000
_STYLE = """
:root{--ink:#1e293b;--grey:#64748b;--line:#e2e8f0;--soft:#f8fafc;--blue:#1d4ed8;color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:#fff;color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:2.5rem 1.25rem 4rem}
header p{color:var(--grey);margin:.25rem 0}
h1{font-size:1.7rem;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:3rem 0 .5rem;padding-bottom:.35rem;border-bottom:2px solid var(--ink)}
h3{font-size:1.02rem;margin:2rem 0 .5rem}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;margin:1.25rem 0 0}
a{color:var(--blue);text-decoration:none}a:hover{text-decoration:underline}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(126px,1fr));gap:.75rem;
margin:1rem 0}
.fact{border:1px solid var(--line);border-radius:8px;padding:.7rem .85rem;background:var(--soft)}
.fact b{display:block;font-size:1.35rem;line-height:1.3;font-variant-numeric:tabular-nums}
.fact span{color:var(--grey);font-size:.8rem;display:block;line-height:1.35}
.fact .name{font-weight:600;color:var(--ink)}
.warning{border-left:4px solid #d97706;background:#fffbeb;padding:.5rem .8rem;margin:.5rem 0}
.absent{border-left:4px solid #94a3b8;background:var(--soft);padding:.6rem .9rem;margin:.5rem 0;
color:#334155}
figure{margin:0}
figure img{display:block;max-width:100%;height:auto;margin:.25rem 0}
.caption{color:var(--grey);font-size:.86rem;margin:.4rem 0 0;max-width:78ch}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.88rem;margin:.4rem 0}
th,td{padding:.4rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{font-weight:600;border-bottom:1.5px solid var(--ink);white-space:nowrap}
th.group{text-align:center;border-bottom:1px solid #94a3b8}
thead tr:first-child th{border-top:1.5px solid var(--ink)}
tbody tr:last-child td{border-bottom:1.5px solid var(--ink)}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.heading td{font-style:italic;background:var(--soft)}
.prose{table-layout:fixed;min-width:560px}
.prose td{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.84rem;line-height:1.45}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.idea{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--soft);border:1px solid
var(--line);border-radius:8px;padding:.8rem 1rem;font-size:.86rem}
.diff{border:1px solid var(--line);border-radius:8px;overflow-x:auto;font-size:.8rem;
line-height:1.45;padding:.6rem 0;margin:.5rem 0}
.diff div{padding:0 .9rem;white-space:pre;min-width:max-content}
.diff .add{background:#dcfce7}.diff .del{background:#fee2e2}
.diff .hunk{color:var(--blue);background:#eff6ff}
.diff .file{font-weight:600;padding-top:.4rem;padding-bottom:.2rem}
ol.lineage{list-style:none;margin:.5rem 0;padding:0 0 0 1.1rem;border-left:2px solid #cbd5e1}
.lineage li{position:relative;margin:0 0 .8rem;padding-left:.4rem}
.lineage li::before{content:"";position:absolute;left:-1.47rem;top:.45rem;width:.65rem;
height:.65rem;border-radius:50%;background:#fff;border:2px solid #64748b}
.lineage li:last-child::before{background:#f59e0b;border-color:#92400e}
.lineage .what{overflow-wrap:anywhere}
.lineage small{color:var(--grey);display:block}
footer{margin-top:3rem;color:var(--grey);font-size:.82rem}
@media print{main{padding:0}.fact{break-inside:avoid}figure{break-inside:avoid}}
""".strip()
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def page(report: Report, pictures: Mapping[str, bytes]) -> str:
    """Return the file's text. `pictures` are SVG by the name of their figure."""
    # Its digest lets the page forbid every other style, and all else but pictures as data.
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'"
    body = "\n".join(_body(report, pictures))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}; base-uri \'none\'; '
        "form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{_text(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    """Escape a text for HTML; escapes of terminals and characters that reorder it are left out."""
    return escape(clean(text), quote=True)


def _body(report: Report, pictures: Mapping[str, bytes]) -> Iterator[str]:
    day = report.as_of.partition("T")[0]
    yield f"<header><h1>{_text(report.title)}</h1>"
    yield f"<p>Assay, from stored results as of {_text(day)}</p>"
    places = [*(section.title for section in report.sections)]
    if report.winners:
        places.append("Winners")
    links = "".join(f'<a href="#{_anchor(p)}">{_text(p)}</a>' for p in places)
    yield f"<nav>{links}</nav></header>"
    for summary in report.summaries:
        yield from _summary(summary, is_alone=len(report.summaries) == 1)
    for section in report.sections:
        yield from _section(section, pictures)
    if report.winners:
        yield f'<section id="{_anchor("Winners")}"><h2>Winners</h2>'
        for winner in report.winners:
            yield from _winner(winner)
        yield "</section>"
    yield (
        "<footer>Metrics come from sealed evaluations. Figures and tables with a number are those "
        "of “Towards Execution-Grounded Automated AI Research”. This file loads nothing and runs "
        "no script.</footer>"
    )


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _summary(summary: Summary, *, is_alone: bool) -> Iterator[str]:
    yield "<section>"
    if not is_alone:
        yield f"<h3>{_text(summary.label)} <small>{_text(summary.search)}</small></h3>"
    yield f"<p>{_text(summary.headline)}</p>"
    facts = (
        f'<div class="fact"><span class="name">{_text(fact.label)}</span>'
        f"<b>{_text(fact.value)}</b><span>{_text(fact.note)}</span></div>"
        for fact in summary.facts
    )
    yield f'<div class="facts">{"".join(facts)}</div>'
    for warning in summary.warnings:
        yield f'<p class="warning">{_text(warning)}</p>'
    yield "</section>"


def _section(section: Section, pictures: Mapping[str, bytes]) -> Iterator[str]:
    yield f'<section id="{_anchor(section.title)}"><h2>{_text(section.title)}</h2>'
    for part in section.parts:
        number = re.fullmatch(r"(figure|table)-(\d+)", part.name)
        kind = f"{number[1].capitalize()} {number[2]}. " if number else ""
        anchor = _anchor(f"{part.name} {type(part).__name__}")
        yield f'<h3 id="{anchor}">{kind}{_text(part.title)}</h3>'
        if part.absent is not None:
            yield f'<p class="absent">{_text(part.absent)}</p>'
            continue
        yield from _figure(part, pictures) if isinstance(part, Figure) else _table(part)
        if part.caption:
            yield f'<p class="caption">{_text(part.caption)}</p>'
    yield "</section>"


def _figure(figure: Figure, pictures: Mapping[str, bytes]) -> Iterator[str]:
    data = base64.b64encode(pictures[figure.name]).decode()
    panels = "; ".join(" ".join(panel.title.split()) for panel in figure.panels)
    told = _text(f"{figure.title}: {panels}")
    yield f'<figure><img alt="{told}" src="data:image/svg+xml;base64,{data}"></figure>'


def _table(table: Table) -> Iterator[str]:
    yield f'<div class="wide"><table{" class=prose" if table.is_prose else ""}><thead>'
    if table.groups:
        groups = (
            f'<th class="group" colspan="{span}">{_text(text)}</th>' for text, span in table.groups
        )
        yield f"<tr>{''.join(groups)}</tr>"
    names = (
        f"<th{_align(table, n)}>{_text(column)}</th>" for n, column in enumerate(table.columns)
    )
    yield f"<tr>{''.join(names)}</tr></thead><tbody>"
    for row in table.rows:
        yield _row(table, row)
    yield "</tbody></table></div>"


def _row(table: Table, row: Row) -> str:
    if row.heading is not None:
        span = len(table.columns)
        return f'<tr class="heading"><td colspan="{span}">{_text(row.heading)}</td></tr>'
    cells = (f"<td{_align(table, n)}>{_cell(cell)}</td>" for n, cell in enumerate(row.cells))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(cell: Cell) -> str:
    return f"<b>{_text(cell.text)}</b>" if cell.is_bold else _text(cell.text)


def _align(table: Table, column: int) -> str:
    return ' class="num"' if column in table.numeric else ""


def _winner(winner: Winner) -> Iterator[str]:
    yield f"<h3>{_text(winner.label)}: {_text(winner.experiment)}</h3>"
    yield f"<p>{_text(winner.standing[:1].upper() + winner.standing[1:])}.</p>"
    yield f'<div class="idea">{_text(winner.idea)}</div>'
    yield "<h3>Lineage</h3>"
    if len(winner.steps) == 1 and not winner.steps[0].other_parents:
        yield "<p>The idea builds on no other.</p>"
    else:
        steps = "".join(_step(step, winner.metric_name) for step in winner.steps)
        yield f'<ol class="lineage">{steps}</ol>'
    yield "<h3>Diff</h3>"
    if winner.diff is None:
        yield '<p class="absent">No diff is stored of this experiment.</p>'
    elif not winner.diff.strip():
        yield '<p class="absent">The codebase is the one that it changes: its diff is empty.</p>'
    else:
        yield f'<div class="diff"><code>{"".join(_diff_lines(winner.diff))}</code></div>'


def _step(step: Step, metric: str) -> str:
    epoch = "before this search" if step.epoch is None else f"epoch {step.epoch}"
    others = f"; and {step.other_parents} other parents" if step.other_parents > 1 else ""
    others = "; and 1 other parent" if step.other_parents == 1 else others
    return (
        f'<li><span class="what">{_text(step.title)}</span><small>{_text(epoch)}, '
        f"{_text(step.operator)}: {_text(metric)} {_text(step.metric)}, effect "
        f"{_text(step.effect)}, {_text(step.verdict)}{others} · {_text(short_id(step.experiment))}"
        "</small></li>"
    )


def _diff_lines(diff: str) -> Iterator[str]:
    lines = diff.rstrip("\n").split("\n")
    before = after = 0
    for line in lines[:MAX_LINES]:
        kind = "same"
        if before > 0 or after > 0:
            mark = line[:1]
            kind = {"+": "add", "-": "del"}.get(mark, "same")
            before -= mark not in ("+", "\\")
            after -= mark not in ("-", "\\")
        elif line.startswith("diff --git "):
            kind = "file"
        elif found := _HUNK.match(line):
            kind = "hunk"
            before, after = int(found[1] or 1), int(found[2] or 1)
        yield f'<div class="{kind}">{_text(line) or " "}</div>'
    left = len(lines) - MAX_LINES
    if left > 0:
        yield f'<div class="hunk">… {left} more lines: assay experiment diff</div>'
