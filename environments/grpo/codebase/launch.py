"""The launch script: starts train.py with FLAGS, which override fields of config.py.

For example FLAGS = ["--learning_rate", "3e-5", "--loss_type", "reinforce_with_baseline"].
"""

import os
import sys

FLAGS = []

if __name__ == "__main__":
    # In place of this process: signals reach the training itself.
    os.execv(sys.executable, [sys.executable, "train.py", *FLAGS, *sys.argv[1:]])
