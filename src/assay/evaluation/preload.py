"""Imported by the process that evaluations are forked from, and by nothing else.

The side effect is the purpose: numpy must find these variables when it is first imported, because
threads it starts would not survive the fork, and an evaluator has one core.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import assay.evaluation.grading
import assay.evaluation.language_model
import assay.evaluation.launch
import assay.evaluation.process
import assay.evaluation.questions  # noqa: F401
