"""Draw docs/images/demo.svg, a picture of what `assay demo` prints at its end.

`scripts/measurements.py` draws it from the demo that docs/measurements.json holds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from assay.analysis import best_table, experiment_table, failure_table
from assay.cli.batch import summary
from assay.contracts.batch import BatchBody, ExperimentBody
from assay.contracts.search import SearchBody
from assay.environments import Catalog

TARGET = Path(__file__).resolve().parent.parent / "docs" / "images" / "demo.svg"
WIDTH = 118


def draw(record: Mapping[str, Any]) -> str:
    """Return the picture as SVG; `record` is the `data` of `assay demo --json`."""
    batch = BatchBody.model_validate(record["batch"])
    experiments = [ExperimentBody.model_validate(e) for e in record["experiments"]]
    search = SearchBody.model_validate(record["search"])
    metric = Catalog().get(batch.environment.partition("@")[0]).manifest.metric
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False
    )
    console.print(Text.assemble(("$ ", "bold green"), "make demo"))
    for renderable in summary(batch, metric.unit):
        console.print(renderable, markup=False)
    console.print(experiment_table(experiments, metric.direction, metric=metric.name, width=WIDTH))
    console.print(failure_table(experiments, title="Failed"))
    title = f"Search: best so far ({search.epochs} epochs of {search.batch_size} ideas)"
    console.print(best_table(search.best, title=title))
    svg = console.export_svg(title="assay demo", theme=MONOKAI, unique_id="demo")
    # Rich's picture would load its font from the network; any monospaced font will do.
    svg = re.sub(r"\s*@font-face\s*{.*?}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
