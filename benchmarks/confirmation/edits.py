"""The seven edits: three good ones, three without effect, one that fits the search split alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.llm.offline.exact import exact_idea
from assay.patching import apply_answer
from assay.patching.blocks import Block, search_replace_blocks
from tests.support.measuring import ROOT, Tree

HERE = Path(__file__).parent / "edits"
SHARED = ROOT / "tests" / "environments" / "nanogpt" / "edits"
GOOD, NEUTRAL, OVERFITTED = "good", "neutral", "overfitted"


@dataclass(frozen=True)
class Edit:
    """A diff, and the class it belongs to whatever it scores."""

    name: str
    kind: str
    path: Path
    title: str

    def tree(self, base: Tree) -> Tree:
        """Return the codebase with the edit."""
        return apply_answer(base, self.path.read_text()).files

    def idea(self, base: Tree) -> str:
        """Return the idea that spells the edit out, as `offline:literal` reads it."""
        after = self.tree(base)
        blocks = search_replace_blocks(base, after)
        for path in sorted(after.keys() - base.keys()):
            blocks.append(Block(path, (), tuple(after[path].removesuffix("\n").split("\n"))))
        return exact_idea(self.title, blocks)


#: The good ones gain 4 to 5 of the baseline's spreads in the committed table; the first two of the
#: neutral ones move the random stream, the third moves the rounding.
EDITS = (
    Edit(
        "bigram_embedding",
        GOOD,
        SHARED / "good_bigram_embedding.diff",
        "Embed pairs of neighbouring bytes.",
    ),
    Edit("rotary_positions", GOOD, SHARED / "good_rotary_positions.diff", "Use rotary positions."),
    Edit(
        "short_convolutions",
        GOOD,
        SHARED / "good_short_convolutions.diff",
        "Mix neighbouring positions before attention and the MLP.",
    ),
    Edit(
        "other_batches",
        NEUTRAL,
        HERE / "neutral_other_batches.diff",
        "Draw the batches with another seed.",
    ),
    Edit(
        "other_weights",
        NEUTRAL,
        HERE / "neutral_other_weights.diff",
        "Draw the initial weights with another seed.",
    ),
    Edit("norm_eps", NEUTRAL, SHARED / "control_norm_eps.diff", "Double the epsilon of the norm."),
    Edit(
        "context_biases",
        OVERFITTED,
        HERE / "overfitted.diff",
        "Add a fixed bias to every output, looked up by the last twelve bytes.",
    ),
)


def chosen(names: Sequence[str]) -> list[Edit]:
    """Return the edits with these names; all of them without one.

    Raises:
        LookupError: there is no such edit.
    """
    if unknown := set(names) - {edit.name for edit in EDITS}:
        raise LookupError(
            f"no such edit: {', '.join(sorted(unknown))}; "
            f"there are {', '.join(edit.name for edit in EDITS)}"
        )
    return [edit for edit in EDITS if not names or edit.name in names]
