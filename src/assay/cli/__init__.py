"""The `assay` command. Noun, then verb: `assay batch submit ideas.jsonl --env nanogpt`."""

from assay.cli.app import main

__all__ = ["main"]
