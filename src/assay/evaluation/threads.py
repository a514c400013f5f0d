"""How many threads a program of a codebase is told to use, in training and when it predicts."""

from __future__ import annotations

_LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def thread_variables(threads: int, gpus: int) -> dict[str, str]:
    """Return the environment variables that tell a process to use `threads` threads.

    With GPUs torch compiles, in as many worker processes. By itself each rank would start as many
    as the host has processors, up to 32.
    """
    names = ["ASSAY_THREADS", *_LIBRARIES]
    if gpus:
        names.append("TORCHINDUCTOR_COMPILE_THREADS")
    return dict.fromkeys(names, str(threads))
