"""Compare mathematical answers with math-verify, in processes that can be killed.

sympy may compute for ever on what a model wrote. So each worker process gets one pair at a time
and one second; one that needs longer is killed and replaced, and its answer is wrong.
"""

import json
import os
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

SECONDS = 1.0
# To import sympy and math-verify.
START_SECONDS = 60.0


class Verifier:
    def __init__(self, workers=None):
        count = workers or int(os.environ.get("ASSAY_THREADS", "1"))
        self.idle = [_Worker() for _ in range(count)]
        self.threads = ThreadPoolExecutor(count)

    def verdicts(self, pairs):
        """A boolean for every (answer, reference)."""
        return list(self.threads.map(self._verdict, pairs))

    def _verdict(self, pair):
        worker = self.idle.pop()
        try:
            return worker.ask(pair)
        finally:
            self.idle.append(worker)

    def close(self):
        self.threads.shutdown()
        for worker in self.idle:
            worker.end()


class _Worker:
    def __init__(self):
        self.process = None

    def ask(self, pair):
        if self.process is None:
            self._start()
        self.process.stdin.write((json.dumps(pair) + "\n").encode())
        self.process.stdin.flush()
        answer = self._line(SECONDS)
        if answer is None:
            self.end()
        return answer == b"1\n"

    def _start(self):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self._line(START_SECONDS) != b"ready\n":
            self.end()
            raise SystemExit("the verifier does not start: is math-verify installed (pip)?")

    def _line(self, seconds):
        """The next line of the worker; None if none comes in time, or ever."""
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return (self.process.stdout.readline() or None) if ready else None

    def end(self):
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process = None


def equal(answer, reference):
    from math_verify import parse, verify

    # The time limits of math-verify are off: they need the main thread, and whoever asks kills.
    gold = parse(f"${reference}$", parsing_timeout=None, raise_on_error=False)
    answer = answer.replace("$", "")
    found = parse(f"${answer}$", parsing_timeout=None, raise_on_error=False)
    return bool(verify(gold, found, timeout_seconds=None, raise_on_error=False))


def main():
    import math_verify  # noqa: F401  now, not in the first pair's second

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write("ready\n")
    for line in sys.stdin:
        try:
            verdict = equal(*json.loads(line))
        except Exception:  # whatever sympy raises, the answer is not shown to be right
            verdict = False
        answers.write("1\n" if verdict else "0\n")


if __name__ == "__main__":
    main()
