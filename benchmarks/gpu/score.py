"""Print the mean loss of a trained nanogpt on windows of a shard; runs in the codebase's folder.

A plain pass without secrets or sandbox: enough to put trainings of known edits in order.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812


def main() -> None:
    weights, shard, count, device = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    sys.path.insert(0, ".")
    import model  # type: ignore[import-not-found]  # of the codebase

    net = model.load(weights, device)
    tokens = np.fromfile(shard, dtype="<u2", offset=1024)
    length = net.config.context
    starts = np.linspace(0, len(tokens) - length - 2, count).astype(np.int64)
    windows = torch.from_numpy(tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64))
    losses = []
    with torch.no_grad():
        for part in windows.to(device).split(16):
            logits = net(part[:, :-1])
            losses.append(F.cross_entropy(logits.transpose(1, 2), part[:, 1:]).item())
    print(sum(losses) / len(losses))


if __name__ == "__main__":
    main()
