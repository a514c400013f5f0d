"""Show measured figures on the pages from the files that hold them, and record new ones.

    python -m scripts.measurements            write the figures into the pages
    python -m scripts.measurements --check    exit with 1 where a page differs
    make bench-overhead | python -m scripts.measurements --record bench-overhead

A page names a figure in a comment in front of it, and another comment ends it:

    about <!--= demo.core_minutes .0f -->9<!--/--> core-minutes

The name is that of an entry of docs/measurements.json, `baseline-NAME-PROFILE-CLASS` for
environments/NAME/baseline.json (without the class: the latest), or that of a file of
benchmarks/results/ without its class (`discrimination-nanogpt`, `cost-nanogpt-tiny`; again the
latest). After the dot come the keys that lead to the figure, and after a space its format. A
name without a dot is one of `BLOCKS`. An entry without figures has not been measured yet; the page
says so.

What `make calibrate` measured names the environment's hash. Where that is not the environment of
this tree, the block `stale-results` says so; a page that shows such figures has to have it.

`--record` keeps the last line of what it reads: a benchmark's JSON, or what scripts/timed.sh says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.analysis.rows import experiment_rows
from assay.cli.batch import summary
from assay.contracts.batch import BatchBody, ExperimentBody
from assay.domain.verdicts import Measured, smallest_effect
from assay.environments import Catalog
from benchmarks.discrimination import RESULTS, table_of
from scripts import picture

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "docs" / "measurements.json"
PAGES = ("*.md", "docs/*.md", "environments/*/README.md")
NOT_MEASURED = "(not measured yet)"
#: The files of benchmarks/results/ that figures are read from.
MEASURED = ("discrimination-*.json", "cost-*.json", "nulls-*.json")
#: The block that tells which figures of a page are of an earlier version of an environment.
STALE = "stale-results"
#: The block with the costs of all environments.
COSTS = "costs"
_WIDTH = 120
#: Where a demo kept its files: nothing that was measured.
PLACES = ("api", "database", "artifacts")
_SHOWN = re.compile(r"<!--= (?P<name>\S+)(?: (?P<format>\S+))? -->(?P<old>.*?)<!--/-->", re.DOTALL)
_TIMED = re.compile(r".+ took (?P<minutes>\d+) min (?P<seconds>\d+) s")
#: Characters of an idea in the README's table.
_TITLE_WIDTH = 48

Figures = Mapping[str, Any]
Entries = Mapping[str, Figures | None]


def stored() -> dict[str, Figures | None]:
    """Return figures, command, date and machine of every entry; None where nothing is measured."""
    found: dict[str, Figures | None] = {}
    for name, entry in json.loads(STORE.read_text()).items():
        found[name] = {**entry, **entry["figures"]} if entry["figures"] else None
    return found | calibrated(ROOT / "environments", RESULTS)


def calibrated(environments: Path, results: Path) -> dict[str, Figures]:
    """Return what `make calibrate` measured, each with whether its environment has changed since.

    An entry whose name lacks the hardware class is the one that was measured last.
    """
    catalog = Catalog([environments])
    present = {environment.name: environment.id for environment in catalog.all()}
    found: dict[str, Figures] = {}
    named: list[tuple[str, str, Figures]] = []
    for name in present:
        for profile, classes in catalog.get(name).committed_baselines().items():
            for kind, baseline in classes.items():
                if n := len(baseline["values"]):
                    sample = Measured.of(dict(enumerate(baseline["values"])))
                    detectable = sample and smallest_effect(sample, 1)
                    more = {"n": n, "detectable": detectable, "hardware_class": kind}
                    more["stale"] = baseline.get("environment") != present[name]
                    named.append((f"baseline-{name}-{profile}", kind, {**baseline, **more}))
    found |= {f"{name}-{kind}": figures for name, kind, figures in named}
    for path in (path for pattern in MEASURED for path in results.glob(pattern)):
        result = json.loads(path.read_text())
        stale = result["environment"] not in present.values()
        kind = result["hardware_class"]
        named.append((path.stem.removesuffix(f"-{kind}"), kind, {**result, "stale": stale}))
    in_order = sorted(named, key=lambda each: (each[2].get("measured_at", ""), each[1]))
    return found | {name: figures for name, _, figures in in_order}


def shown(name: str, how: str, entries: Entries) -> str:
    """Return the text of a figure or a block.

    Raises:
        KeyError: nothing has this name.
    """
    if name == COSTS:
        return costs(entries)
    if name in BLOCKS:
        entry, block = BLOCKS[name]
        figures = entries[entry]
        return f"\n{NOT_MEASURED if figures is None else block(figures)}\n"
    first, *keys = name.split(".")
    value: Any = entries[first]
    if value is None:
        return NOT_MEASURED
    for key in keys:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return format(value, how)


def rendered(text: str, entries: Entries) -> str:
    """Return a page with the figures that are stored."""
    names = [found["name"] for found in _SHOWN.finditer(text)]

    def replace(found: re.Match[str]) -> str:
        name, how, old = found["name"], found["format"] or "", found["old"]
        new = stale_note(names, entries) if name == STALE else shown(name, how, entries)
        opening = found[0][: found.start("old") - found.start()]
        return found[0] if old == new else f"{opening}{new}<!--/-->"

    return _SHOWN.sub(replace, text)


def costs(entries: Entries) -> str:
    """Return the block `COSTS`: what a run of each environment takes on idle and on busy cores."""
    rows = []
    for name in _cost_names(entries):
        figures = entries[name] or {}
        environment = figures["environment"].partition("@")[0]
        cells = [f"`{environment}` `{figures['profile']}`", figures["hardware_class"]]
        for condition in ("idle", "busy"):
            found = figures[condition]
            cells += [f"{found[key]:.1f}" for key in ("core_seconds", "wall_seconds")]
        rows.append("| {} |".format(" | ".join(cells)))
    if not rows:
        return f"\n{NOT_MEASURED}\n"
    head = [
        "| | | core-seconds, idle | wall, idle | core-seconds, busy | wall, busy |",
        "|---" * 6 + "|",
    ]
    return "\n{}\n".format("\n".join([*head, *rows]))


def _cost_names(entries: Entries) -> list[str]:
    return sorted(name for name in entries if name.startswith("cost-"))


def stale_names(names: Collection[str], entries: Entries) -> list[str]:
    """Return the entries behind figures or blocks whose environment has changed since."""
    firsts = set(_cost_names(entries)) if COSTS in names else set()
    for name in set(names) - {STALE, COSTS}:
        firsts.add(BLOCKS[name][0] if name in BLOCKS else name.partition(".")[0])
    return sorted(name for name in firsts if (entries[name] or {}).get("stale"))


def stale_note(names: Collection[str], entries: Entries) -> str:
    """Return the block `STALE` of a page that shows these figures: empty if all are current."""
    stale = stale_names(names, entries)
    if not stale:
        return "\n\n"
    parts = []
    for name in stale:
        version = (entries[name] or {}).get("environment", "version not recorded")
        parts.append(f"`{name}` ({version})")
    note = (
        "Some figures on this page were measured on an earlier version of the environment: "
        f"{', '.join(parts)}. `make calibrate` measures them again."
    )
    lines = textwrap.wrap(note, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n{}\n".format("\n".join(lines))


def recorded(output: str, *, printed: bool) -> dict[str, Any]:
    """Return the figures in what a command printed; with `printed`, its lines as they are.

    Raises:
        ValueError: the last line is neither JSON nor from scripts/timed.sh.
    """
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    if printed:
        return {"printed": [line for line in lines if not line or set(line) - {" ", "─"}]}
    last = lines[-1] if lines else ""
    if timed := _TIMED.fullmatch(last):
        seconds = 60 * int(timed["minutes"]) + int(timed["seconds"])
        return {"seconds": seconds, "minutes": round(seconds / 60, 1)}
    figures: dict[str, Any] = json.loads(last)
    figures = figures.get("data", figures)  # what the command line wraps in an envelope
    return {key: value for key, value in figures.items() if key not in PLACES}


def machine() -> str:
    """Return what measures, and how busy it has been for the last quarter of an hour."""
    from services.worker.hardware import hardware_class, read_cpu

    cpu = read_cpu()
    load = os.getloadavg()[2]
    return f"{os.cpu_count()} cores, {cpu.model}, {hardware_class(cpu)}, load {load:.1f}"


def demo_results(figures: Figures) -> str:
    """The end of `assay demo`: the best idea, one undecided, the worst, and the failures."""
    batch = BatchBody.model_validate(figures["batch"])
    bodies = [ExperimentBody.model_validate(e) for e in figures["experiments"]]
    metric = Catalog().get(batch.environment.partition("@")[0]).manifest.metric
    rows = experiment_rows(bodies, metric.direction, _TITLE_WIDTH)
    scored = [row for row in rows if row.rank]
    noise = [row for row in scored[1:-1] if row.verdict.startswith("undecided")]
    chosen = [scored[0], *noise[:1], scored[-1], *(row for row in rows if row.state == "failed")]
    (about,) = summary(batch, metric.unit)
    cells = [("#", "idea", "state", metric.name, "effect [95 %]", "verdict")]
    cells += [
        (str(row.rank or "–"), row.title, row.state, row.metric, row.effect, row.verdict)
        for row in chosen
    ]
    return _fenced([*str(about).splitlines()[1:], "", *_aligned(cells)])


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in lines]


def _fenced(lines: list[str]) -> str:
    return "\n".join(["```text", *lines, "```"])


def printed_lines(figures: Figures) -> str:
    """What a command printed."""
    return _fenced(figures["printed"])


def edits(figures: Figures) -> str:
    """The table of `benchmarks.discrimination`."""
    environment = Catalog().get(figures["environment"].partition("@")[0])
    return table_of(figures["figures"], environment.manifest.metric.name)


def verdict_rates(figures: Figures) -> str:
    """How often verdicts on ideas without an effect are wrong: a line per bank, kind and seeds."""
    head = [
        "| bank | ideas without an effect | seeds | better | worse | covers | old rule |",
        "|---" * 7 + "|",
    ]
    rows = []
    for bank, found in figures["figures"].items():
        for name, rules in found["nulls"].items():
            kind, _, seeds = name.partition("/")
            now, old = (
                [f"{rules[rule][what][0]:.1%}" for what in ("better", "worse", "covered")]
                for rule in ("shipped", "two_sigma")
            )
            cells = [f"`{bank}`", _NULLS[kind], seeds, *now, " / ".join(old[:2])]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*head, *rows])


def verdict_power(figures: Figures) -> str:
    """How often verdicts find an effect: a line per bank, size and number of seeds."""
    head = [
        "| bank | effect, in spreads | edits | seeds | called right | called wrong | old rule |",
        "|---" * 7 + "|",
    ]
    rows = []
    for bank, found in figures["figures"].items():
        for name, rules in found["power"].items():
            sizes, _, seeds = name.partition("/")
            now, old = rules["shipped"], rules["two_sigma"]
            smallest, _, largest = sizes.partition("-")
            size = f"above {smallest}" if largest == "inf" else f"{smallest} to {largest}"
            shares = [now["called_right"], now["called_wrong"], old["called_right"]]
            cells = [f"`{bank}`", size, now["edits"], seeds, *(f"{s[0]:.0%}" for s in shares)]
            rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*head, *rows])


#: Kinds of null of `benchmarks.verdicts`, as the page names them.
_NULLS = {"other_seeds": "other luck", "same_seeds": "rounding", "recentred": "recentred"}

#: What fills whole lines of a page: by name, the entry and what is made of its figures.
BLOCKS: dict[str, tuple[str, Callable[[Figures], str]]] = {
    "demo-results": ("demo", demo_results),
    "quickstart-batch": ("quickstart-batch", printed_lines),
    "quickstart-search": ("quickstart-search", printed_lines),
    "discrimination-nanogpt": ("discrimination-nanogpt", edits),
    "discrimination-grpo": ("discrimination-grpo", edits),
    "discrimination-grpo-good": ("discrimination-grpo-good", edits),
    "discrimination-toy": ("discrimination-toy", edits),
    "verdict-rates": ("bench-verdicts", verdict_rates),
    "verdict-power": ("bench-verdicts", verdict_power),
}


def rendered_files(entries: Entries) -> dict[Path, str]:
    """Return every page, and the picture, as they should be."""
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    files = {path: rendered(path.read_text(), entries) for path in pages}
    demo = entries["demo"]
    return files if demo is None else files | {picture.TARGET: picture.draw(demo)}


def record(name: str, command: str, figures: Figures) -> None:
    """Store an entry, with the date and what measured it."""
    entries = json.loads(STORE.read_text())
    date = datetime.now(UTC).date().isoformat()
    entries[name] = {"command": command, "date": date, "machine": machine(), "figures": figures}
    STORE.write_text(json.dumps(entries, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def main() -> int:
    """Record if asked to; then render, or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    parser.add_argument("--record", metavar="ENTRY", help="store what stdin says as this entry")
    parser.add_argument("--command", help="what printed it (default: make ENTRY)")
    parser.add_argument("--printed", action="store_true", help="keep all lines as they are")
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="KEY=NUMBER",
        type=lambda text: text.split("=", 1),
        help="a figure that the output lacks",
    )
    given = parser.parse_args()
    if given.record:
        figures = recorded(sys.stdin.read(), printed=given.printed)
        figures |= {key: float(value) for key, value in given.add}
        command = given.command or f"make {given.record.removeprefix('make-')}"
        record(given.record, command, figures)
    differ = {p: text for p, text in rendered_files(stored()).items() if p.read_text() != text}
    for path, text in differ.items():
        if given.check:
            sys.stderr.write(f"{path.relative_to(ROOT)} differs; run `make measurements`\n")
        else:
            path.write_text(text)
    return 1 if given.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
