"""Write the failures into docs/errors.md, or with --check say whether the page is current."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from assay.domain.failure_codes import RULES, FailureCode
from assay.domain.states import FailureStage

TARGET = Path(__file__).resolve().parent.parent / "docs" / "errors.md"
_TABLE = re.compile(r"<!-- failure codes: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_ANCHOR = re.compile(r'<a id="(\w+)"></a>')
_WORDS = {False: "no", True: "yes"}


def described() -> str:
    """Return the page with its tables as the registry has them."""
    page = TARGET.read_text()
    elsewhere = set(_ANCHOR.findall(_TABLE.sub("", page)))

    def table(found: re.Match[str]) -> str:
        name = found[1]
        lines = _attempts(elsewhere) if name == "attempts" else _ended(name, elsewhere)
        return f"<!-- failure codes: {name} -->\n" + "\n".join(lines) + "\n<!-- end -->"

    return _TABLE.sub(table, page)


def section(code: FailureCode) -> str:
    """Return the table that a code is in."""
    rules = RULES[code]
    if rules.retried:
        return "attempts"
    if rules.stages[0] is FailureStage.IMPLEMENT:
        return "implement"
    return "score" if rules.stages == (FailureStage.SCORE,) else "run"


def _ended(name: str, elsewhere: set[str]) -> Iterator[str]:
    """Failures that end an experiment or a measurement."""
    yield "| code | stage | blame | meaning and remedy |"
    yield "|---|---|---|---|"
    for code, rules in RULES.items():
        if section(code) == name:
            stages = ", ".join(rules.stages)
            yield f"| {_named(code, elsewhere)} | {stages} | {rules.blame} | {rules.meaning} |"


def _attempts(elsewhere: set[str]) -> Iterator[str]:
    """Failures after which the measurement is queued again."""
    yield "| code | blame | uses a try | counts against the worker | meaning and remedy |"
    yield "|---|---|---|---|---|"
    for code, rules in RULES.items():
        if section(code) == "attempts":
            tries, counts = _WORDS[rules.counts_as_try], _WORDS[rules.counts_against_worker]
            cells = [_named(code, elsewhere), rules.blame, tries, counts, rules.meaning]
            yield f"| {' | '.join(cells)} |"


def _named(code: FailureCode, elsewhere: set[str]) -> str:
    """The code with its anchor, unless another table of the page has that."""
    anchor = "" if code in elsewhere else f'<a id="{code}"></a>'
    return f"{anchor}`{code}`"


def main() -> int:
    """Write or check."""
    if "--check" in sys.argv:
        if TARGET.read_text() == described():
            return 0
        sys.stderr.write("docs/errors.md is not current; run `make failure-codes`\n")
        return 1
    TARGET.write_text(described())
    return 0


if __name__ == "__main__":
    sys.exit(main())
