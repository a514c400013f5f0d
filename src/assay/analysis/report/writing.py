"""The report as the text of one HTML file, with its pictures. Needs matplotlib."""

from __future__ import annotations

from assay.analysis.report.content import Report
from assay.analysis.report.drawing import draw
from assay.analysis.report.making import make_report
from assay.analysis.report.page import page
from assay.analysis.report.record import SearchRecord


def html_of(report: Report) -> str:
    """Return a report as one file that loads nothing.

    Raises:
        Unavailable: matplotlib is not installed.
    """
    drawn = [figure for figure in report.figures if figure.absent is None]
    return page(report, {figure.name: draw(figure, "svg") for figure in drawn})


def html_of_search(record: SearchRecord) -> str:
    """Return the report of one search. Raises as `html_of`."""
    return html_of(make_report([record]))
