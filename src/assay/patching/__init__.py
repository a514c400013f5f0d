"""Turn an answer that holds edits into a patched tree, or refuse and say what to send instead.

Standard library only. Nothing here touches the disk: trees are `{path: text}` mappings.
"""

from assay.patching.apply import apply_answer
from assay.patching.blocks import search_replace_blocks
from assay.patching.diff import unified_diff
from assay.patching.guard import check_codebase
from assay.patching.types import (
    FileRecord,
    HunkRecord,
    PatchRefused,
    PatchReport,
    PatchResult,
    RefusalCode,
)

__all__ = [
    "FileRecord",
    "HunkRecord",
    "PatchRefused",
    "PatchReport",
    "PatchResult",
    "RefusalCode",
    "apply_answer",
    "check_codebase",
    "search_replace_blocks",
    "unified_diff",
]
