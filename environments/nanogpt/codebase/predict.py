"""Answers the evaluator's questions about the trained model (protected: no idea may edit it).

Started with $ASSAY_OUT pointing at what training left. It reads questions from stdin and writes
answers to stdout until stdin ends. A frame is b"ASSY", the length of a JSON header (u32,
little-endian), the header, and the raw bytes of the arrays the header describes.

    next: tokens (B, t) int32 -> logits (B, V) float32 for the byte after each prefix
    all:  tokens (B, T) int32 -> logits (B, T, V) float32
"""

import os
import sys

# The real stdout is for answers alone: whatever edited code prints goes to stderr.
ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

import json  # noqa: E402
import struct  # noqa: E402

import torch  # noqa: E402

import model  # noqa: E402


def read_question(stream):
    """(header, tokens) of the next question, or None at the end."""
    prefix = stream.read(8)
    if len(prefix) < 8:
        return None
    magic, length = struct.unpack("<4sI", prefix)
    assert magic == b"ASSY"
    header = json.loads(stream.read(length))
    (array,) = header["arrays"]
    assert array["name"] == "tokens" and array["dtype"] == "int32"
    rows, columns = array["shape"]
    raw = bytearray(stream.read(4 * rows * columns))
    return header, torch.frombuffer(raw, dtype=torch.int32).view(rows, columns).long()


def write_answer(seq, logits):
    logits = logits.float().contiguous()
    described = [{"name": "logits", "dtype": "float32", "shape": list(logits.shape)}]
    header = json.dumps({"seq": seq, "op": "answer", "arrays": described}).encode()
    ANSWERS.write(struct.pack("<4sI", b"ASSY", len(header)) + header)
    ANSWERS.write(memoryview(logits.view(-1).view(torch.uint8).numpy()))
    ANSWERS.flush()


@torch.no_grad()
def main():
    torch.set_num_threads(int(os.environ.get("ASSAY_THREADS", "1")))
    net = model.load(os.path.join(os.environ["ASSAY_OUT"], "model.pt"))
    while (question := read_question(sys.stdin.buffer)) is not None:
        header, tokens = question
        logits = net(tokens)
        write_answer(header["seq"], logits[:, -1] if header["op"] == "next" else logits)


if __name__ == "__main__":
    main()
