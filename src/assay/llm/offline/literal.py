"""The literal implementer: carries out ideas whose code changes spell out exact edits."""

import asyncio
import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from assay.domain.ids import new_id
from assay.llm.executors import ImplementRequest, RequestId
from assay.llm.ideas import read_idea
from assay.llm.interface import Completion, Gate, OnTry, Try, Usage
from assay.patching import PatchRefused, unified_diff
from assay.patching.blocks import Block, block_hunk, read_blocks
from assay.patching.effort import Effort, Exhausted
from assay.patching.text import join_file, split_file

NAME = "offline:literal"
_CANNOT = (
    "This implementer is not a model: it only carries out edits that an idea spells out. "
    "The idea holds no SEARCH/REPLACE block that names its file, so nothing can be carried out. "
    "Choose an executor model for ideas in prose."
)


class LiteralImplementer:
    """An executor without a model and without chance: the same request has the same answer.

    Edits whose search text stands once in their file are carried out. Of any other edit the answer
    holds the diff the idea means, with the idea's own context, so that patching refuses it.
    """

    @property
    def name(self) -> str:
        return NAME

    def prompt_version(self, request: ImplementRequest) -> str:
        """It has no prompt."""
        return "literal-1"

    def identify(self, request: ImplementRequest) -> RequestId:
        """See `Executor.identify`."""
        asked = f"{request.revision}\0{request.idea_text}"
        return RequestId(hashlib.sha256(asked.encode()).hexdigest())

    async def implement(
        self,
        request: ImplementRequest,
        *,
        on_try: OnTry | None = None,
        gate: Gate | None = None,
    ) -> Completion:
        """The answer; raises nothing of its own. No provider limits it: `gate` is not asked."""
        began, id_ = time.monotonic(), new_id("call")
        if on_try is not None:
            await on_try(Try(id_, 1, "started"))
        # In a thread: reading an idea's edits can take a second, and others are served meanwhile.
        answer = await asyncio.to_thread(_answer, request)
        completion = Completion(answer, "", "end", Usage(), NAME)
        if on_try is not None:
            seconds = time.monotonic() - began
            done = Try(id_, 1, "returned", completion=completion, usage=Usage(), seconds=seconds)
            await on_try(done)
        return completion

    async def aclose(self) -> None:
        """Nothing to close."""


def why_no_edit(idea_text: str, names: Iterable[str]) -> str | None:
    """Return why an idea spells out no edit of files with these names; None if it spells out one.

    Whether an edit fits is not looked at.
    """
    try:
        return None if _blocks(idea_text, names) else "the text holds no SEARCH/REPLACE block"
    except PatchRefused as refused:
        return f"its edits cannot be read: {refused.log.rstrip('.')}"


def _blocks(idea_text: str, names: Iterable[str]) -> list[Block]:
    """Return the edits that an idea spells out. Raises PatchRefused if they cannot be read."""
    code_changes = read_idea(idea_text).code_changes or idea_text
    return [block for block in read_blocks(code_changes.split("\n"), names) if block.path]


def _answer(request: ImplementRequest) -> str:
    try:
        blocks = _blocks(request.idea_text, request.files)
    except PatchRefused as refused:
        return f"The idea's edits cannot be read. {refused.log}"
    if not blocks:
        return _CANNOT
    after, left = _carry_out(request.files, blocks)
    diff = unified_diff(request.files, after) + "".join(_meant(block) for block in left)
    if not diff:
        return "The idea's edits leave the codebase as it is."
    return f"The edits the idea spells out, as a diff:\n\n```diff\n{diff}```\n"


def _carry_out(
    files: Mapping[str, str], blocks: Sequence[Block]
) -> tuple[dict[str, str], list[Block]]:
    """Return the files after the edits that fit, and the edits that do not fit or that are left
    when the work for one idea is spent. Patching refuses those it cannot place."""
    after = dict(files)
    left: list[Block] = []
    effort = Effort()
    for block in blocks:
        if block.path not in after and not "".join(block.search).strip():
            after[block.path] = join_file(list(block.replace), True)
            continue
        lines, final_newline = split_file(after.get(block.path, ""))
        search = list(block.search)
        size = len(search)
        try:
            effort.spend(len(lines))
            places = list(islice(_places(lines, search, effort), 2))
        except Exhausted:
            left.append(block)
            continue
        if len(places) != 1:
            left.append(block)
            continue
        at = places[0]
        lines[at : at + size] = block.replace
        after[block.path] = join_file(lines, final_newline)
    return after, left


def _places(lines: Sequence[str], search: Sequence[str], effort: Effort) -> Iterator[int]:
    size = len(search)
    if not size:
        return
    for i in range(len(lines) - size + 1):
        if lines[i] == search[0]:
            effort.spend(size)
            if lines[i : i + size] == search:
                yield i


def _meant(block: Block) -> str:
    """The diff of an edit that does not fit, from its own two texts."""
    hunk = block_hunk(block)
    path = re.sub(r"\s+", " ", block.path)
    head = f"--- a/{path}\n+++ b/{path}\n@@ -1,{len(hunk.old)} +1,{len(hunk.new)} @@\n"
    return head + "".join(f"{line.mark}{line.text}\n" for line in hunk.lines)
