"""Sparklines, CSV and short ids."""

from __future__ import annotations

import csv
import io
import math

from assay.analysis.comma_separated import experiments_as_csv
from assay.analysis.sparklines import sparkline
from assay.analysis.text import format_effect, short_id
from tests.support.search_records import comparison, experiment


def test_a_sparkline_has_a_block_per_value() -> None:
    assert sparkline([1.0, 2.0, 3.0]) == "▁▅█"
    assert sparkline([3.0, None, math.nan, 1.0]) == "█  ▁"
    assert sparkline([2.0, 2.0]) == "▅▅"
    assert sparkline([]) == sparkline([None, math.inf]) == ""


def test_a_long_sparkline_is_averaged() -> None:
    assert sparkline([float(n // 10) for n in range(100)], 10) == sparkline(
        [float(n) for n in range(10)]
    )
    assert len(sparkline([float(n) for n in range(97)], 20)) == 20


def test_a_short_id_has_the_prefix_and_the_end() -> None:
    assert short_id("exp_01m8447w05bzzdpa3m5p981abg") == "exp_5p981abg"
    assert short_id("here") == "here"


def test_csv_holds_what_decides_and_starts_no_formula() -> None:
    one = experiment(
        "exp_1", "bat_1", 0, "[Experiment] =HYPERLINK(1)", 3.0, metrics={"accuracy": 0.5}
    )
    failed = experiment("exp_2", "bat_1", 1, 'two, with "quotes"', None)
    rows = list(csv.DictReader(io.StringIO(experiments_as_csv([one, failed]))))
    assert (rows[0]["metric"], rows[0]["verdict"], rows[0]["accuracy"]) == ("3.0", "better", "0.5")
    assert rows[0]["idea"] == "'=HYPERLINK(1)"
    assert (rows[1]["state"], rows[1]["failure"], rows[1]["metric"]) == ("failed", "crashed", "")
    assert rows[1]["idea"] == 'two, with "quotes"'


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert format_effect(comparison(-1e-9, low=-0.02, high=0.02)).startswith("0.0000 [-0.0200, +")
