"""Starts the training: one process, or one per GPU. Flags for config.py can stand in FLAGS."""

import os
import sys
import time

# For example ["--learning_rate", "0.002", "--weight_decay", "0.05"].
FLAGS = []


def main():
    # The budget's clock runs from here; with $ASSAY_ASK from when the text is there (train.py).
    os.environ["NANOGPT_STARTED"] = repr(time.monotonic())
    # Memory that is freed is kept: to give it back and fetch it again in every step takes a quarter
    # of the time of `tiny`. Read by the C library when a process starts.
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        os.environ.setdefault(name, str(1 << 30))
    gpus = int(os.environ.get("ASSAY_GPUS") or 0)
    sys.stdout.flush()
    command = [sys.executable, *(torchrun(gpus) if gpus > 1 else []), "train.py"]
    os.execv(sys.executable, [*command, *FLAGS, *sys.argv[1:]])


def torchrun(ranks):
    """Arguments of python that start so many ranks of the script that follows.

    They meet at an address, since a name may not be known, on a port that the system picks when it
    opens it (port 0), since several trainings may run on one host.
    """
    meet = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    return ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *meet]


if __name__ == "__main__":
    main()
