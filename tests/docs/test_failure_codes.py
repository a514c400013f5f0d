"""The page on errors says of failures what the registry says."""

from __future__ import annotations

import re

from assay.domain.failure_codes import RULES, FailureCode
from scripts.failure_codes import TARGET, described, section


def test_docs_errors_md_is_current() -> None:
    assert TARGET.read_text() == described(), "run `make failure-codes`"


def test_every_failure_is_in_one_of_the_four_tables() -> None:
    tables = dict(
        re.findall(r"<!-- failure codes: (\w+) -->\n(.*?)<!-- end -->", described(), re.DOTALL)
    )
    assert set(tables) == {"implement", "run", "score", "attempts"}
    for code in FailureCode:
        rows = [
            name
            for name, table in tables.items()
            if re.search(rf"^\| (<a id=\"{code}\"></a>)?`{code}` \|", table, re.M)
        ]
        assert rows == [section(code)], code
        assert f"| {RULES[code].meaning} |" in tables[section(code)], code
