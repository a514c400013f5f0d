"""Assay as the evaluator of other optimizers: OpenEvolve, GEPA and SkyDiscover.

Each has a module of its own here, a few lines around `Evaluator`. Nothing in Assay imports this
package; the optimizers import it. See docs/adapters.md.
"""

from assay.adapters.evaluator import Candidate, Evaluator
from assay.adapters.score import NoResult, Score

__all__ = ["Candidate", "Evaluator", "NoResult", "Score"]
