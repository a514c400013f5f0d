"""Ideas that spell out exact edits, as the literal implementer reads them."""

from collections.abc import Mapping, Sequence

from assay.llm.ideas import IdeaText, format_idea
from assay.llm.offline.knobs import Recipe
from assay.patching.blocks import Block, format_block


def recipe_idea(recipe: Recipe) -> str:
    """The idea that carries out a recipe alone."""
    return exact_idea(f"{recipe.title.rstrip('.')}.", recipe_blocks(recipe))


def exact_idea(experiment: str, blocks: Sequence[Block]) -> str:
    """`experiment` in words, and the blocks as its code changes, file by file."""
    by_file: Mapping[str, list[Block]] = {
        file: [block for block in blocks if block.path == file]
        for file in sorted({block.path for block in blocks})
    }
    changes = "\n\n".join(
        f"In `{file}`:\n\n" + "\n\n".join(format_block(block) for block in of_file)
        for file, of_file in by_file.items()
    )
    return format_idea(IdeaText(experiment, changes))


def recipe_blocks(recipe: Recipe) -> list[Block]:
    """The edits of a recipe as they are declared."""
    return [Block(e.file, _lines(e.search), _lines(e.replace)) for e in recipe.edits]


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.strip("\n").split("\n"))
