"""The launch script: starts train.py with FLAGS, which override fields of config.py.

For example FLAGS = ["--learning_rate", "3e-5", "--loss_type", "reinforce_with_baseline"].
"""

import os
import sys

FLAGS = []

if __name__ == "__main__":
    # In place of this process: signals reach the training itself.
    if os.environ.get("ASSAY_GPUS", "0") != "0":
        # Rollouts and updates need the memory in pieces of other sizes. Segments that grow can
        # serve both; fixed ones stay as the first left them. torch reads this when it starts.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    os.execv(sys.executable, [sys.executable, "train.py", *FLAGS, *sys.argv[1:]])
