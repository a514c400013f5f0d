"""The report of searches: figures and tables of the paper, from stored records alone.

`make_report` turns records into figures and tables as data; `drawing` and `page` show them.
"""

from assay.analysis.report.content import Figure, Report, Section, Table
from assay.analysis.report.making import Choices, make_report
from assay.analysis.report.record import EpochRecord, Payment, SearchRecord

__all__ = [
    "Choices",
    "EpochRecord",
    "Figure",
    "Payment",
    "Report",
    "SearchRecord",
    "Section",
    "Table",
    "make_report",
]
