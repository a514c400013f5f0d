"""Random windows of the training text. A byte is a token; there is no tokenizer."""

import os

import torch


def load_text():
    """The training text as bytes, shape (N,). Held-out text is not on this machine's side at all."""
    path = os.path.join(os.environ["ASSAY_DATA"], "text.bin")
    with open(path, "rb") as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def batches(text, batch_size, context, seed):
    """Yields (tokens, targets), both (batch_size, context); targets are the tokens one place on."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(context + 1)
    while True:
        starts = torch.randint(len(text) - context, (batch_size, 1), generator=generator)
        windows = text[starts + offsets].long()  # (batch_size, context + 1)
        yield windows[:, :-1], windows[:, 1:]
