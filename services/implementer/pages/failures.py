"""The page of failures: by cause, and by who has to change something."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fastapi import Request, Response
from markdown_it import MarkdownIt
from markupsafe import Markup

from assay.contracts.report import ExecutionRow
from assay.domain.failure_codes import rules_for
from assay.storage.funnel import Scope
from services.implementer.dependencies import ContextDep, IdQuery, NameQuery, OwnerDep
from services.implementer.pages.rendering import WHOSE, render
from services.implementer.pages.routing import page_router
from services.implementer.routers import reports
from services.implementer.views.dashboard import FailureExample, failure_examples

router = page_router()


@dataclass(frozen=True)
class Cause:
    """All failures of one code at one stage."""

    stage: str
    code: str
    count: int
    blame: str
    meaning: Markup
    examples: list[FailureExample]


@router.get("/failures")
def failures(
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    environment: NameQuery = None,
    search: IdQuery = None,
) -> Response:
    """Show why experiments failed and whose fault that was."""
    if environment is not None:
        context.environments.get(environment)  # raises NotFound
    with context.db.snapshot() as session:
        lines = reports.read_lines(context, session, Scope(owner, environment, search=search))
        rows = reports.execution_rows(session, lines)
        examples = failure_examples(session, lines)
    causes = _causes(rows, examples)
    by_blame: dict[str, list[Cause]] = defaultdict(list)
    for cause in causes:
        by_blame[cause.blame].append(cause)
    return render(
        request,
        "failures.html",
        owner=owner,
        by_blame=sorted(by_blame.items(), key=lambda each: -sum(c.count for c in each[1])),
        failed=sum(cause.count for cause in causes),
        submitted=sum(row.funnel.submitted for row in rows),
        scored=sum(row.funnel.scored for row in rows),
        wasted=sum(row.wasted_seconds for row in rows),
        environment=environment,
        search=search,
        rows=rows,
    )


def _causes(
    rows: list[ExecutionRow], examples: dict[tuple[str, str], list[FailureExample]]
) -> list[Cause]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        for failure in row.failures:
            counts[failure.stage, failure.code] += failure.count
    # Meanings are ours, in Markdown; HTML in them would be shown as text.
    parser = MarkdownIt("commonmark", {"html": False})
    found = []
    for (stage, code), count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        rules = rules_for(code, stage)
        meaning = Markup(parser.renderInline(rules.meaning.replace("](", "](/docs/")))
        found.append(
            Cause(stage, code, count, WHOSE[rules.blame], meaning, examples.get((stage, code), []))
        )
    return found
