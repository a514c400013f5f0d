"""Starts the training: one process, or one per GPU. Flags for config.py can stand in FLAGS."""

import os
import sys
import time

# For example ["--learning_rate", "0.002", "--weight_decay", "0.05"].
FLAGS = []


def main():
    # The budget's clock runs from here: importing torch and compiling are inside.
    os.environ["NANOGPT_STARTED"] = repr(time.monotonic())
    # Memory that is freed is kept: to give it back and fetch it again in every step takes a quarter
    # of the time of `tiny`. Read by the C library when a process starts.
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        os.environ.setdefault(name, str(1 << 30))
    gpus = int(os.environ.get("ASSAY_GPUS") or 0)
    command = [sys.executable]
    if gpus > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
    sys.stdout.flush()
    os.execv(sys.executable, [*command, "train.py", *FLAGS, *sys.argv[1:]])


if __name__ == "__main__":
    main()
