"""Answers are judged in child processes: what they may use, and what becomes of the children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.domain.errors import Unavailable
from services.implementer.judges import Judges
from services.implementer.judging import Judgement, judge
from tests.support.waiting import wait_until

BASELINE = {"train.py": "STEP = 1\n", "predict.py": "y = 2\n", "old.py": "z = 3\n"}
PROTECTED = ("predict.py",)
GOOD = "```diff\n--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-STEP = 1\n+STEP = 4\n```\n"
MISFIT = GOOD.replace("-STEP = 1", "-STEP = 99")
BROKEN = GOOD.replace("+STEP = 4", "+return 4")
DELETES = "```diff\ndiff --git a/old.py b/old.py\ndeleted file mode 100644\n```\n" + GOOD


def with_nested_finally(depth: int, functions: int = 1) -> str:
    """An answer of a few lines that compiles to 2 to the power of `depth` copies of its last."""
    lines = []
    for number in range(functions):
        lines.append(f"def f{number}():")
        for level in range(1, depth + 1):
            lines += [f"{' ' * level}{text}" for text in ("try:", " pass", "finally:")]
        lines.append(f"{' ' * (depth + 1)}x = 1")
    added = "".join(f"+{line}\n" for line in lines)
    return f"```diff\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,{len(lines)} @@\n{added}```\n"


#: Half a minute of processor time, one function after the other; and 1.5 GB at once.
ENDLESS, LARGE = with_nested_finally(14, 300), with_nested_finally(19)
#: A second of processor time.
LONG = with_nested_finally(14, 10)


@pytest.fixture
def judges() -> Iterator[Judges]:
    pool = Judges(quick_seconds=0.1, slow_seconds=0.2)
    yield pool
    pool.close()


def ask(judges: Judges, answer: str, baseline: dict[str, str] = BASELINE) -> Judgement:
    return asyncio.run(judges.judge("batch", answer, baseline, PROTECTED, compiles=True))


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("answer", [GOOD, MISFIT, BROKEN, DELETES, "", "no edit"])
def test_a_child_judges_as_the_function_does(judges: Judges, answer: str) -> None:
    expected = judge(answer, BASELINE, PROTECTED, compiles=True)
    assert ask(judges, answer) == expected
    assert ask(judges, answer) == expected  # of a child that knows the baseline
    assert len(judges.pids) == 1


def test_each_answer_is_judged_against_its_own_baseline(judges: Judges) -> None:
    other = BASELINE | {"train.py": "STEP = 99\n"}
    for _ in range(2):
        assert ask(judges, MISFIT).files is None
        assert ask(judges, MISFIT, other).files == BASELINE | {"train.py": "STEP = 4\n"}


def test_an_answer_that_takes_too_much_memory_is_refused(judges: Judges) -> None:
    small = Judges(memory_bytes=128 << 20)
    try:
        found = ask(small, with_nested_finally(16))
        assert found.rejected is not None
        assert "too much memory" in found.rejected.message
        assert ask(small, GOOD).rejected is None
    finally:
        small.close()


@pytest.mark.slow
def test_an_answer_that_takes_too_much_time_is_refused(judges: Judges) -> None:
    found = ask(judges, ENDLESS)
    assert found.rejected is not None
    assert found.rejected.code == "too_costly"
    assert "processor time" in found.rejected.message
    assert found.files is None
    assert ask(judges, GOOD).rejected is None


@pytest.mark.slow
def test_an_answer_is_given_more_time_at_the_second_try() -> None:
    judges = Judges(quick_seconds=0.01, slow_seconds=30)
    try:
        found = ask(judges, with_nested_finally(14, 16))
        assert found.rejected is None
        assert found.files is not None
        assert len(judges.pids) == 1  # the first was killed
    finally:
        judges.close()


@pytest.mark.parametrize(("times", "code"), [(1, None), (2, "too_costly")])
def test_a_child_out_of_time_is_replaced_once(times: int, code: str | None) -> None:
    """The kernel's signal, sent early. The second child belongs to the slow ones."""
    judges = Judges(quick_seconds=60, slow_seconds=60)

    async def run() -> Judgement:
        task = asyncio.create_task(judges.judge("batch", LONG, BASELINE, PROTECTED, compiles=True))
        for _ in range(times):
            await asyncio.to_thread(wait_until, lambda: bool(judges.pids))
            (pid,) = judges.pids
            os.kill(pid, signal.SIGXCPU)
            await asyncio.to_thread(wait_until, lambda pid=pid: pid not in judges.pids)
        return await task

    try:
        rejected = asyncio.run(run()).rejected
        assert (rejected and rejected.code) == code
    finally:
        judges.close()


def limits_of(pid: int) -> str:
    return Path(f"/proc/{pid}/limits").read_text()


def test_the_kernel_keeps_the_limits_of_a_child() -> None:
    """Also those of processor time, which hold while it judges alone: else reading the next
    answer could exceed what was left of this one's."""
    judges = Judges(quick_seconds=30, memory_bytes=1 << 29)

    def seconds() -> str:
        return limits_of(judges.pids[0]).split("Max cpu time")[1].split()[0]

    async def run() -> Judgement:
        task = asyncio.create_task(judges.judge("batch", LONG, BASELINE, PROTECTED, compiles=True))
        await asyncio.to_thread(wait_until, lambda: bool(judges.pids))
        await asyncio.to_thread(wait_until, lambda: seconds() != "unlimited")
        assert 30 <= int(seconds()) <= 33
        return await task

    try:
        assert asyncio.run(run()).rejected is None
        assert seconds() == "unlimited"
        limits = limits_of(judges.pids[0])
        assert limits.split("Max address space")[1].split()[:2] == [str(1 << 29)] * 2
        assert limits.split("Max core file size")[1].split()[0] == "0"
    finally:
        judges.close()


@pytest.mark.slow
def test_an_honest_answer_does_not_wait_for_hostile_ones() -> None:
    judges = Judges(quick_seconds=0.5, slow_seconds=5)

    async def run() -> int:
        hostile = [
            asyncio.create_task(judges.judge("batch", ENDLESS, BASELINE, PROTECTED, compiles=True))
            for _ in range(8)
        ]
        await asyncio.sleep(0)  # all of them are ahead of it
        honest = await judges.judge("other", GOOD, BASELINE, PROTECTED, compiles=True)
        assert honest.rejected is None
        left = sum(not task.done() for task in hostile)
        for task in hostile:
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)
        return left

    try:
        assert asyncio.run(run()) >= 6
    finally:
        judges.close()


def order_of(judges: Judges, answers: list[tuple[str, str]]) -> list[str]:
    """The batches of answers that are sent at once, in the order of their judgements."""
    done: list[str] = []

    async def judged(batch: str, answer: str) -> None:
        found = await judges.judge(batch, answer, BASELINE, PROTECTED, compiles=True)
        assert found.rejected is None
        done.append(batch)

    async def run() -> None:
        await asyncio.gather(*(judged(*each) for each in answers))

    try:
        asyncio.run(run())
    finally:
        judges.close()
    return done


def test_batches_take_turns_among_quick_answers() -> None:
    # With one child they end in the order in which they begin.
    judges = Judges(quick=1, quick_seconds=60)
    done = order_of(judges, [("crowd", GOOD)] * 40 + [("other", GOOD)])
    assert done.index("other") < 3


def test_batches_take_turns_among_slow_answers() -> None:
    judges = Judges(quick_seconds=0.001, slow_seconds=60)
    for batch in ("crowd", "other"):
        exceed_once(judges, batch)
    short = with_nested_finally(10)
    done = order_of(judges, [("crowd", short)] * 12 + [("other", short)])
    assert done.index("other") < 5


def test_a_batch_goes_straight_to_the_slow_ones_until_it_is_quick() -> None:
    # Between what a good answer takes (milliseconds) and what a long one does (half a second or
    # more, as the machine has it).
    judges = Judges(quick_seconds=0.1, slow_seconds=60)
    try:
        exceed_once(judges, "batch")
        slow = set(judges.pids)
        ask(judges, GOOD)
        assert set(judges.pids) == slow
        ask(judges, GOOD)
        assert len(judges.pids) == 2
    finally:
        judges.close()


def exceed_once(judges: Judges, batch: str) -> None:
    """Let an answer of a batch exceed the first bound. It takes longer than the first bound."""

    async def run() -> Judgement:
        known = set(judges.pids)
        task = asyncio.create_task(judges.judge(batch, LONG, BASELINE, PROTECTED, compiles=True))
        await asyncio.to_thread(wait_until, lambda: bool(set(judges.pids) - known))
        os.kill((set(judges.pids) - known).pop(), signal.SIGXCPU)
        return await task

    assert asyncio.run(run()).rejected is None


def test_a_child_that_was_killed_while_idle_is_replaced(judges: Judges) -> None:
    ask(judges, GOOD)
    (pid,) = judges.pids
    os.kill(pid, signal.SIGKILL)
    assert ask(judges, GOOD).rejected is None
    assert judges.pids != [pid]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_an_answer_is_not_blamed_for_a_child_that_was_killed(number: signal.Signals) -> None:
    judges = Judges(quick_seconds=60)

    async def run() -> Judgement:
        task = asyncio.create_task(judges.judge("batch", LONG, BASELINE, PROTECTED, compiles=True))
        await asyncio.to_thread(wait_until, lambda: bool(judges.pids))
        os.kill(judges.pids[0], number)
        return await task

    try:
        assert asyncio.run(run()).rejected is None
    finally:
        judges.close()


def test_children_that_keep_being_killed_are_not_the_answers_fault() -> None:
    judges = Judges(quick_seconds=60)

    async def run() -> None:
        task = asyncio.create_task(
            judges.judge("batch", ENDLESS, BASELINE, PROTECTED, compiles=True)
        )
        killed = set[int]()
        while not task.done():
            for pid in set(judges.pids) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            await asyncio.sleep(0.01)
        with pytest.raises(Unavailable, match="being killed"):
            await task

    try:
        asyncio.run(run())
    finally:
        judges.close()


def test_no_child_is_left_after_closing(judges: Judges) -> None:
    async def run() -> list[int]:
        busy = Judges(quick_seconds=60)
        task = asyncio.create_task(
            busy.judge("batch", ENDLESS, BASELINE, PROTECTED, compiles=True)
        )
        await asyncio.to_thread(wait_until, lambda: bool(busy.pids))
        pids = busy.pids
        await asyncio.to_thread(busy.close)
        with pytest.raises(Unavailable):
            await task
        return pids

    ask(judges, GOOD)
    pids = [*judges.pids, *asyncio.run(run())]
    judges.close()
    assert pids
    assert not any(map(is_there, pids))
    with pytest.raises(Unavailable):
        ask(judges, GOOD)


def test_no_child_outlives_a_service_that_is_killed() -> None:
    code = (
        "import asyncio, sys, threading, time\n"
        "from services.implementer.judges import Judges\n"
        "judges = Judges(quick_seconds=60)\n"
        "def run(): asyncio.run(judges.judge('batch', sys.stdin.read(), {}, (), compiles=True))\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "while not judges.pids: time.sleep(0.01)\n"
        "print(*judges.pids, flush=True)\n"
        "time.sleep(60)\n"
    )
    service = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with service:
        assert service.stdin is not None
        assert service.stdout is not None
        service.stdin.write(ENDLESS)
        service.stdin.close()
        pids = [int(word) for word in service.stdout.readline().split()]
        assert pids
        service.kill()
    wait_until(lambda: not any(map(is_there, pids)))


def test_a_child_has_nothing_of_the_services(
    judges: Judges, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    with (tmp_path / "database").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        ask(judges, GOOD)
        (pid,) = judges.pids
        process = Path(f"/proc/{pid}")
        assert process.joinpath("environ").read_bytes() == b""
        open_files = {fd.name: fd.readlink().as_posix() for fd in process.joinpath("fd").iterdir()}
    assert set(open_files) == {"0", "1", "2"}
    assert open_files["0"].startswith("pipe:")
    assert open_files["1"].startswith("pipe:")
    assert open_files["2"] == os.devnull
