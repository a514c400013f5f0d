"""Draw figures with matplotlib, which the extra `assay[report]` brings. Imported where it is used.

The same figure gives the same bytes: ids in SVG come from a fixed salt, and no date is written.
Text is drawn as paths in matplotlib's own font, so that a picture looks the same everywhere.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from assay.analysis.report.content import Figure, Panel, Series
from assay.analysis.text import one_line
from assay.domain.errors import Unavailable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Format = Literal["svg", "png"]

_COLORS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#475569")
_INK, _GREY, _GRID, _BASELINE = "#1e293b", "#64748b", "#e2e8f0", "#475569"
#: Inches of a panel; the height holds the axis labels and up to two lines of title.
_WIDTH, _HEIGHT = 4.6, 3.1
_NARROW = 3.1
#: So many places of whole numbers each have a tick.
_TICKS = 12
_DPI = 160
#: As `Any`, since matplotlib has a type for every name.
_STYLE: Any = {
    "svg.fonttype": "path",
    "svg.hashsalt": "assay",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": "#94a3b8",
    "axes.labelcolor": _INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _GRID,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.borderpad": 0.2,
    "legend.fontsize": 8,
    "text.parse_math": False,  # a dollar sign of a model is a dollar sign
}


def check_can_draw() -> None:
    """Raises Unavailable: matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise Unavailable(
            f"pictures need matplotlib ({error}); install it with: pip install 'assay[report]'. "
            "The numbers alone need nothing: --json"
        ) from None


def draw(figure: Figure, format_: Format) -> bytes:
    """Return the picture of a figure that is not absent, as SVG or PNG.

    Raises:
        Unavailable: matplotlib is not installed.
    """
    check_can_draw()
    from matplotlib.figure import Figure as Canvas

    columns = min(figure.columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    width = _NARROW if figure.columns > 2 else _WIDTH
    with _style():
        canvas = Canvas(figsize=(width * columns, _HEIGHT * rows), layout="constrained")
        grid = canvas.subplots(rows, columns, squeeze=False)
        places = [axes for line in grid for axes in line]
        for axes, panel in zip(places, figure.panels, strict=False):
            _draw_panel(axes, panel)
        for axes in places[len(figure.panels) :]:
            axes.set_axis_off()
        file = io.BytesIO()
        if format_ == "svg":
            metadata = {"Date": None, "Creator": None, "Title": figure.title}
        else:
            metadata = {"Software": None, "Title": figure.title}
        canvas.savefig(file, format=format_, dpi=_DPI, metadata=metadata)
    return file.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib as mpl

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A model may name something in letters that the font lacks; they are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    if panel.level is not None:
        _draw_level(axes, panel)
    for series in panel.series:
        _draw_series(axes, panel, series)
    axes.set_title("\n".join(one_line(part, 60) for part in panel.title.split("\n")), loc="left")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylim(0, 1.05)
    elif panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    elif panel.from_zero:
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    if panel.is_whole:
        places = sorted({x for series in panel.series for x in series.x})
        if len(places) <= _TICKS:
            axes.set_xticks(places)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if panel.ticks:
        _draw_ticks(axes, panel)
    if panel.diagonal:
        axes.axline((0, 0), slope=1, color=_BASELINE, linewidth=1, linestyle=(0, (4, 3)))
        axes.axhline(0, color=_GRID, linewidth=1, zorder=0)
    _draw_legend(axes, panel)


def _draw_level(axes: Axes, panel: Panel) -> None:
    level = panel.level
    if level is None:
        return
    if level.spread is not None:
        low, high = level.value - level.spread, level.value + level.spread
        axes.axhspan(low, high, color=_BASELINE, alpha=0.1, linewidth=0)
    axes.axhline(
        level.value, color=_BASELINE, linewidth=1.2, linestyle=(0, (4, 3)), label=level.label
    )


def _draw_series(axes: Axes, panel: Panel, series: Series) -> None:
    color = _COLORS[series.color % len(_COLORS)]
    label = one_line(series.label, 44) or "_"
    x, y = _numbers(series)
    if series.mark == "crosses":
        place: Any = axes.get_xaxis_transform()
        axes.plot(
            series.x, [0.02] * len(series.x), "x", color="#b91c1c", alpha=0.55, markersize=4,
            transform=place, label=label, clip_on=False,
        )  # fmt: skip
    elif series.mark == "line" and series.is_faint:
        axes.plot(x, y, color=color, linestyle=(0, (1, 1.5)), linewidth=1.4, label=label)
    elif series.mark == "line":
        axes.plot(x, y, "o-", color=color, markersize=4.5, linewidth=1.8, label=label)
    elif series.mark == "steps":
        style = (0, (1, 1.5)) if series.is_faint else "solid"
        width = 1.4 if series.is_faint else 2.0
        axes.step(
            x, y, where="post", color=color, linewidth=width, linestyle=style, label=label
        )  # fmt: skip
        if len(x) == 1:
            axes.plot(x, y, "o", color=color, markersize=4.5)
    elif series.mark == "area":
        axes.fill_between(x, y, color=color, alpha=0.12, linewidth=0, label=label)
    elif series.mark == "bars":
        _draw_bars(axes, panel, x, y, color)
    elif series.mark == "stars":
        axes.plot(
            x, y, "*", color="#f59e0b", markersize=13, markeredgecolor="#92400e", label=label,
            zorder=5,
        )  # fmt: skip
    else:
        _draw_points(axes, panel, series, color, label)


def _draw_bars(axes: Axes, panel: Panel, x: list[float], y: list[float], color: str) -> None:
    bars = axes.bar(x, y, color=color, alpha=0.85, width=0.62)
    texts = [f"{value:.0%}" if panel.is_share else f"{value:.4g}" for value in y]
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    axes.bar_label(bars, texts, padding=3, fontsize=8, color=_INK, bbox=behind)


def _draw_points(axes: Axes, panel: Panel, series: Series, color: str, label: str) -> None:
    x, y = _numbers(series)
    if series.low and series.high:
        ends = zip(y, series.low, series.high, strict=True)
        reach = [
            (0.0, 0.0) if low is None or high is None else (value - low, high - value)
            for value, low, high in ends
        ]
        axes.errorbar(
            x, y, yerr=[[a for a, _ in reach], [b for _, b in reach]], fmt="none", ecolor=color,
            elinewidth=1, alpha=0.6, capsize=2,
        )  # fmt: skip
    alpha = 0.4 if series.is_faint else 0.9
    size = 14 if series.is_faint else 34
    if panel.y_range is None:
        axes.scatter(x, y, s=size, color=color, alpha=alpha, linewidths=0, label=label)
        return
    low, high = panel.y_range
    inside = [(a, b) for a, b in zip(x, y, strict=True) if low <= b <= high]
    axes.scatter(
        [a for a, _ in inside], [b for _, b in inside], s=size, color=color, alpha=alpha,
        linewidths=0, label=label,
    )  # fmt: skip
    for marker, edge in (("v", low), ("^", high)):
        out = [a for a, b in zip(x, y, strict=True) if (b < low if marker == "v" else b > high)]
        axes.scatter(
            out, [edge] * len(out), s=18, marker=marker, color=color, alpha=0.7, linewidths=0,
            clip_on=False,
        )  # fmt: skip


def _draw_ticks(axes: Axes, panel: Panel) -> None:
    places = range(len(panel.ticks))
    wrapped = [_wrap(tick) for tick in panel.ticks]
    axes.set_xticks([*places], wrapped, fontsize=7.5)
    axes.grid(visible=False, axis="x")
    # One bar alone would fill the panel.
    axes.set_xlim(-0.75, max(len(panel.ticks), 2) - 0.25)
    values = [v for series in panel.series for v in series.y if v is not None]
    if panel.level is not None:
        spread = panel.level.spread or 0.0
        values += [panel.level.value - spread, panel.level.value + spread]
    if panel.from_zero or not values:
        return
    # Bars of metrics begin near the lowest, as differences are small beside the whole.
    reach = max(values) - min(values) or abs(max(values)) or 1.0
    axes.set_ylim(min(values) - 0.35 * reach, max(values) + 0.25 * reach)


def _wrap(tick: str) -> str:
    lines = []
    for part in tick.split("\n"):
        name = one_line(part, 54)
        while len(name) > _TICK:
            cut = max(name.rfind(mark, 4, _TICK) for mark in " -:/")
            cut = cut + 1 if cut > 0 else _TICK
            lines.append(name[:cut].rstrip())
            name = name[cut:]
        lines.append(name)
    return "\n".join(lines)


#: Characters of a line below a bar.
_TICK = 18


def _draw_legend(axes: Axes, panel: Panel) -> None:
    handles, found = axes.get_legend_handles_labels()
    known: dict[str, Any] = {}
    for handle, label in zip(handles, found, strict=True):
        known.setdefault(label, handle)
    is_alone = len(known) == 1 and len(panel.series) == 1
    if known and not is_alone and not panel.ticks:
        axes.legend(known.values(), known.keys(), loc="best")


def _numbers(series: Series) -> tuple[list[float], list[float]]:
    if series.mark == "crosses":
        return [], []
    pairs = zip(series.x, series.y, strict=True)
    found = [(a, b) for a, b in pairs if b is not None and math.isfinite(b)]
    return [a for a, _ in found], [b for _, b in found]
