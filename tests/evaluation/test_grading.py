"""A grader that executes answers, and answers that know it; for each cheat an honest twin."""

from __future__ import annotations

import contextlib
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation import (
    Evaluation,
    InvalidAnswer,
    Rejection,
)
from assay.evaluation.decoys import assign_decoys
from assay.evaluation.grading import GraderError, Grades, sum_up
from assay.evaluation.grading import grade as grade_with
from assay.sandbox import SandboxSettings
from tests.evaluation.conftest import MakeRequest

# `eval` stands for a parser of mathematics: it executes what it is given.
GRADER = """
import os, struct, sys, time
SECRET = "in the grader"
def grade(answer, reference):
    if not answer:
        return 0.0
    return abs(eval(answer) - eval(reference)) < 1e-9
"""
COUNT = 60
REFERENCES = [str(3 * i + 1) for i in range(COUNT)]
BACKENDS = ["subprocess", pytest.param("bubblewrap", marks=pytest.mark.bubblewrap)]

Grade = Callable[..., Grades]


@pytest.fixture
def grade(tmp_path: Path, request_for: MakeRequest) -> Grade:
    """Grade answers with a grader's text through `Evaluation.grade`."""
    (tmp_path / "held_out" / "references").write_text("secret")

    def run(
        answers: Sequence[str | None],
        references: Sequence[str] = REFERENCES,
        grader: str = GRADER,
        backend: str = "subprocess",
        seed: int = 0,
        seconds: float = 60.0,
        **options: Any,
    ) -> Grades:

        (tmp_path / "evaluator" / "grade.py").write_text(textwrap.dedent(grader))
        sandbox = SandboxSettings(backend, scratch=tmp_path / "scratch")
        request = request_for("", seed=seed, sandbox=sandbox, seconds=seconds)
        evaluation = Evaluation.begin(replace(request, seconds=seconds))
        grades = evaluation.grade(answers, references, **options)
        assert len(evaluation.predictor_cpu_seconds) >= 3
        return grades

    return run


def forging(body: str) -> str:
    """An answer that takes over the process it is graded in; `mark(1.0)` claims full marks."""
    code = f"""
import os, struct, sys, random, glob, signal, ctypes
def mark(value):
    os.write(3, struct.pack("<d", value)); os._exit(0)
reference = sys._getframe(2).f_locals["reference"]
{textwrap.dedent(body)}
"""
    return f"exec({code!r})"


@pytest.mark.parametrize("backend", BACKENDS)
def test_right_answers_count_and_all_questions_are_the_denominator(
    grade: Grade, backend: str
) -> None:
    answers: list[str | None] = [f"{r} + 0" for r in REFERENCES]
    assert grade(answers, backend=backend) == Grades((1.0,) * COUNT, 1.0, 0, 0, 0, 0)
    answers[:30] = [None] * 10 + ["1 / 0"] * 5 + ["(("] * 5 + ["-7"] * 10
    found = grade(answers, backend=backend)
    assert found.marks == (0.0,) * 30 + (1.0,) * 30
    assert (found.mean, found.missing, found.failed, found.fooled) == (0.5, 10, 10, 0)


@pytest.mark.parametrize(
    "body",
    [
        "mark(1.0)",
        *(
            pytest.param(body, marks=pytest.mark.slow)
            for body in (
                "mark(float(random.SystemRandom().random() < 0.5))",
                "mark(float(hash(reference) % 2))",
            )
        ),
    ],
)
def test_forged_marks_are_noticed(grade: Grade, body: str) -> None:
    with pytest.raises(InvalidAnswer) as refused:
        grade([forging(body)] * COUNT)
    assert refused.value.code is FailureCode.FOOLED
    # Two may pass, and gain nothing.
    answers = [forging("mark(1.0)")] * 2 + REFERENCES[2:]
    found = grade(answers)
    assert found.fooled == 2
    assert found.marks[:2] == (0.0, 0.0)
    assert found.marks[2:] == (1.0,) * 58


@pytest.mark.slow
def test_rare_forgery_gains_nothing_on_average(grade: Grade) -> None:
    """Drawing lots: right against the reference as often as against the decoy."""
    lots = forging("mark(float(random.SystemRandom().random() < 0.1))")
    gains: list[float] = []
    for seed in range(6):
        answers = [lots] * 4 + REFERENCES[4:30]
        with contextlib.suppress(InvalidAnswer):  # three times lucky with decoys
            gains += grade(answers, REFERENCES[:30], seed=seed).marks[:4]
    assert len(gains) >= 16
    assert abs(np.mean(gains)) < 0.4  # four standard deviations


def test_marks_that_are_no_marks_count_as_none(grade: Grade) -> None:
    bodies = ["mark(2.0)", "mark(-1.0)", "mark(float('nan'))", "os._exit(0)", "os.write(3, b'1')"]
    bodies += ["os.kill(os.getpid(), 9)", "sys.exit(3)", "os.close(3)"]
    answers = [forging(body) for body in bodies] + REFERENCES[len(bodies) :]
    found = grade(answers)
    assert found.marks == (0.0,) * len(bodies) + (1.0,) * (COUNT - len(bodies))
    assert found.failed == len(bodies)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_bad_answer_does_not_touch_the_others(grade: Grade, backend: str) -> None:
    bodies = [
        "while True: pass",
        "os.kill(os.getppid(), 9)",
        "x = bytearray(1 << 40)",
        "import builtins; builtins.abs = lambda x: 0",
        "[os.close(fd) for fd in range(10)]",
        "signal.pause()",
        "1 / 0",
    ]
    if backend == "subprocess":  # would stop, not kill: the evaluation's own limit ends it
        bodies[1] = "0"
    answers = [forging(body) for body in bodies] + REFERENCES[len(bodies) :]
    found = grade(answers, backend=backend, pair_seconds=1.0)
    assert found.marks == (0.0,) * len(bodies) + (1.0,) * (COUNT - len(bodies))
    assert found.fooled == 0


ATTEMPTS = [
    # The process that reads the questions: its memory, its descriptors, its environment.
    "open(f'/proc/{os.getppid()}/mem', 'rb'); mark(1.0)",
    "open(f'/proc/{os.getppid()}/mem', 'r+b'); mark(1.0)",
    "open(f'/proc/{os.getppid()}/fd/0', 'rb'); mark(1.0)",
    "open(f'/proc/{os.getppid()}/fd/1', 'wb'); mark(1.0)",
    "os.listdir(f'/proc/{os.getppid()}/fd'); mark(1.0)",
    "ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 and mark(1.0)",
    # What was left open, and what stands in files.
    "{os.fstat(fd).st_rdev for fd in (0, 1, 2)} != {os.stat('/dev/null').st_rdev} and mark(1.0)",
    "[fd for fd in range(4, 999) if os.fstat(fd)] and mark(1.0)",
    "sorted(os.listdir('/work/grader')) != ['grade.py', 'grade_server.py'] and mark(1.0)",
    "{'out', 'codebase', 'config.json'} & set(os.listdir('/work')) and mark(1.0)",
    "glob.glob('/tmp/**/references', recursive=True) and mark(1.0)",
    "open('/work/grader/grade.py', 'a'); mark(1.0)",
    # Somebody who stays behind.
    "os.fork(); mark(1.0)",
]


@pytest.mark.bubblewrap
def test_under_bubblewrap_a_child_finds_its_own_pair_and_nothing_else(grade: Grade) -> None:
    """Each attempt claims marks where it succeeds; that claims are heard, the last one shows."""
    answers = [*(forging(attempt) for attempt in ATTEMPTS), forging("mark(1.0)")]
    # In an order of their own, so that it is seen which one succeeded.
    for start in range(len(answers) - 1):
        two = [answers[start], answers[-1]]
        found = grade(two, REFERENCES[:2], backend="bubblewrap", pair_seconds=2.0)
        assert found.failed == 1, ATTEMPTS[start]
        assert found.fooled == 1, ATTEMPTS[start]


@pytest.mark.bubblewrap
def test_the_memory_of_a_child_holds_no_other_pair(grade: Grade) -> None:
    """A later child looks for the references of all earlier ones in its own memory."""
    references = [f"{739_100_000_000 + 987_654 * i}" for i in range(20)]
    # Pages that are not there make `write` fail; /proc/self/maps is not for this program.
    look = """
    import re
    held = ["7391" + str(12345678)] if PLANTED else []
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    reader, writer = os.pipe()
    size = ctypes.c_size_t(4096)
    found, seen = set(), set()
    for start in (id(reference), id(held), id(re), id("".join(held)), libc.sbrk(0) - 4096):
        for step in (4096, -4096):
            at, before = start & ~4095, b""
            while at not in seen and libc.write(writer, ctypes.c_void_p(at), size) == 4096:
                seen.add(at)
                data = os.read(reader, 4096)
                text = before + data if step > 0 else data + before
                found |= set(re.findall(rb"7391\\d{8}", text))
                at, before = at + step, data
            seen.discard(start & ~4095)
    mark(float(RIGHT))
    """
    search = forging(
        look.replace("PLANTED", "False").replace("RIGHT", "found != {reference.encode()}")
    )
    planted = forging(look.replace("PLANTED", "True").replace("RIGHT", "b'739112345678' in found"))
    found = grade([search] * 18 + [planted] * 2, references, backend="bubblewrap")
    assert found.failed == 0
    assert found.fooled == 2, "a pair that is not its own was found, or the search finds nothing"


def test_a_wrong_answer_that_is_right_elsewhere_is_wrong_and_no_forgery(grade: Grade) -> None:
    found = grade([REFERENCES[(i + 1) % COUNT] for i in range(COUNT)])
    assert (found.mean, found.fooled) == (0.0, 0)
    assert set(found.marks) == {0.0}


def test_a_grader_that_accepts_lists_of_guesses_is_noticed(grade: Grade) -> None:
    lax = "def grade(answer, reference): return reference in answer.split(' or ')"
    guesses = " or ".join(REFERENCES)
    with pytest.raises(InvalidAnswer) as refused:
        grade([guesses] * COUNT, grader=lax)
    assert refused.value.code is FailureCode.FOOLED
    assert grade(REFERENCES, grader=lax).mean == 1.0


def test_a_grader_that_does_not_start_is_the_environments_fault(grade: Grade) -> None:
    with pytest.raises(GraderError, match="no_such_module"):
        grade(REFERENCES, grader="import no_such_module")
    with pytest.raises(GraderError, match="grade"):
        grade(REFERENCES, grader="x = 1")


def test_a_grader_may_import_its_own_files(grade: Grade, tmp_path: Path) -> None:
    (tmp_path / "evaluator" / "rules.py").write_text("def same(a, b): return a == b")
    grader = "import rules\ndef grade(a, b): return rules.same(a, b)"
    assert grade(REFERENCES, grader=grader, files=["rules.py"]).mean == 1.0
    with pytest.raises(GraderError):
        grade(REFERENCES, grader=grader)


def test_there_must_be_one_answer_per_reference(grade: Grade) -> None:
    for answers, references in (([], []), (["1"], ["1", "2"])):
        with pytest.raises(ValueError):
            grade(answers, references)


def never(one: str, other: str) -> bool:
    return False


def same_letters(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def test_decoys_are_a_permutation_of_references_that_differ() -> None:
    references = [str(i % 7) for i in range(50)] + ["a", "b"]
    differ = [
        assign_decoys(references, np.random.default_rng(s), lambda a, b: False) for s in range(5)
    ]
    for decoys in differ:
        assert all(d is not None and references[d] != references[i] for i, d in enumerate(decoys))
        assert sorted(d for d in decoys if d is not None) == list(range(52))
    assert len({tuple(d) for d in differ}) == 5
    # Equal values are no decoys of one another, however they are written.
    halves = ["1/2", "0.5", "50%", "2", "4/2"]
    kinds = [0, 0, 0, 1, 1]
    same = {
        frozenset((a, b))
        for a, i in zip(halves, kinds, strict=True)
        for b, j in zip(halves, kinds, strict=True)
        if i == j
    }
    decoys = assign_decoys(
        halves, np.random.default_rng(0), lambda a, b: frozenset((a, b)) in same
    )
    assert decoys.count(None) == 1
    assert all(d is None or kinds[d] != kinds[i] for i, d in enumerate(decoys))
    assert assign_decoys(["x"] * 4, np.random.default_rng(0), lambda a, b: True) == [None] * 4


def test_a_decoy_says_as_much_about_its_question_as_the_reference_does() -> None:
    """Seen from inside, (question, reference) and (question, decoy) cannot be told apart: with
    two references, either exchange is as likely as the other."""
    references = [str(i) for i in range(4)]
    seen: dict[tuple[int | None, ...], int] = {}
    for seed in range(3000):
        found = tuple(assign_decoys(references, np.random.default_rng(seed), lambda a, b: False))
        seen[found] = seen.get(found, 0) + 1
    for decoys, times in seen.items():
        inverse = tuple(decoys.index(i) for i in range(4))
        assert abs(times - seen[inverse]) < 5 * np.sqrt(2 * times)
    assert len(seen) == 6  # all cycles of four


def test_with_few_values_too_either_exchange_is_as_likely_wherever_a_question_stands() -> None:
    """Of questions with the same reference one is as likely as the other, and (i, j) as (j, i);
    also where spellings are alike and had to be exchanged, and one has no decoy."""
    runs = 4000
    for references, alike in (
        (list("aabbc"), never),
        (list("aAbaBcA"), same_letters),
    ):
        times = np.zeros((len(references), len(references)))
        for seed in range(runs):
            for i, j in enumerate(assign_decoys(references, np.random.default_rng(seed), alike)):
                times[i, i if j is None else j] += 1
        assert np.abs(times - times.T).max() < 5 * np.sqrt(runs / 2)
        for i, one in enumerate(references):
            same = [j for j, other in enumerate(references) if other == one]
            assert all(abs(times[i, i] - times[j, j]) < 5 * np.sqrt(runs / 2) for j in same)
            for k in set(range(len(references))) - set(same):
                assert np.ptp(times[k, same]) < 5 * np.sqrt(runs / 2)


@pytest.mark.parametrize(
    ("references", "alike", "without"),
    [
        (["yes", "no"] * 100, never, 0),
        (["yes"] * 500 + ["no"] * 500, never, 0),
        (list("ABCD") * 250, never, 0),
        (list("AAABBC") * 100, never, 0),
        (["yes", "Yes ", "no", "No"] * 50, same_letters, 0),
        (["yes"] * 90 + ["YES"] * 10 + ["no"] * 60 + ["No"] * 40, same_letters, 0),
        # Where more than half are the same, no more than what is left of them goes without.
        (["yes"] * 120 + ["no"] * 80, never, 40),
        (["yes", "Yes"] * 60 + ["no", "No"] * 40, same_letters, 40),
        (["0"] * 490 + ["00"] + [str(i) for i in range(1, 510)], lambda a, b: int(a) == int(b), 0),
        # Near ones are alike, though not all those between which they lead.
        ([str(i) for i in range(100, 300)], lambda a, b: abs(int(a) - int(b)) < 8, 0),
        (["x"], never, 1),
    ],
)
def test_all_have_a_decoy_unless_more_than_half_are_the_same(
    references: list[str], alike: Callable[[str, str], bool], without: int
) -> None:
    for seed in range(5):
        decoys = assign_decoys(references, np.random.default_rng(seed), alike)
        pairs = [(i, d) for i, d in enumerate(decoys) if d is not None]
        assert len(pairs) == len(references) - without
        assert sorted(d for _, d in pairs) == [i for i, _ in pairs]
        for i, d in pairs:
            assert references[i].strip() != references[d].strip()
            assert not alike(references[i], references[d])


def test_decoys_look_similar_where_many_references_differ() -> None:
    references = [str(i) for i in range(1000)]
    decoys = assign_decoys(references, np.random.default_rng(0), never)
    assert np.mean([abs(i - d) < 2 * 16 for i, d in enumerate(decoys) if d is not None]) > 0.99


def test_a_grader_that_finds_everything_alike_is_not_asked_about_all_pairs() -> None:
    asked: list[str] = []

    def always(one: str, other: str) -> bool:
        asked.append(one)
        return True

    references = [str(i) for i in range(1000)]
    decoys = assign_decoys(references, np.random.default_rng(0), always)
    assert decoys == [None] * 1000
    assert len(asked) < 10_000


@pytest.mark.parametrize("claims", [{"yes": 1.0, "no": 0.0}, {"yes": 0.2, "no": 0.7}])
def test_what_goes_by_the_text_alone_gains_nothing(claims: dict[str, float]) -> None:
    references = ["yes"] * 51 + ["no"] * 49
    decoys = assign_decoys(references, np.random.default_rng(0), never)
    assert decoys.count(None) == 2
    gain = sum(
        claims[references[i]] - claims[references[d]]
        for i, d in enumerate(decoys)
        if d is not None
    )
    assert abs(gain) < 1e-9


def test_marks_without_a_decoy_do_not_count() -> None:
    references = ["yes"] * 51 + ["no"] * 49
    decoys = assign_decoys(references, np.random.default_rng(0), never)
    without = [None if d is None else 0.0 for d in decoys]
    # Right answers lose nothing by the two that have none, ...
    found = sum_up(references, decoys, [1.0] * 100, without)
    assert (found.mean, found.without_decoy, sum(found.marks)) == (1.0, 2, 98.0)
    # ... and wrong ones gain nothing.
    real = [1.0 if d is None else 0.0 for d in decoys]
    assert sum_up(references, decoys, real, without).mean == 0.0


YES_NO = """
def grade(answer, reference):
    names = {"yes": 1.0, "no": 0.0}
    return abs(eval(answer, dict(names)) - eval(reference, dict(names))) < 1e-9
"""


def test_yes_and_no_can_be_graded_and_not_be_forged(grade: Grade) -> None:
    references = ["yes", "no", "no", "yes"] * 10
    assert grade(references, references, YES_NO) == Grades((1.0,) * 40, 1.0, 0, 0, 0, 0)
    half = grade(["yes"] * 40, references, YES_NO)
    assert (half.mean, half.fooled) == (0.5, 0)
    with pytest.raises(InvalidAnswer) as refused:
        grade([forging("mark(1.0)")] * 40, references, YES_NO)
    assert refused.value.code is FailureCode.FOOLED
    few = grade([forging("mark(1.0)")] * 2 + ["1 / 0"] * 38, references, YES_NO)
    assert (few.mean, few.fooled) == (0.0, 2)


@pytest.mark.parametrize("references", [["yes"] * 12 + ["no"] * 8, ["yes"] * 2, ["no"]])
def test_references_that_are_too_uniform_are_refused_with_the_remedy(
    references: list[str],
) -> None:
    with pytest.raises(GraderError, match=r"(?s)too uniform.*compare normalised text"):
        grade_with(FakeGrader, references, references, np.random.default_rng(0))


class FakeGrader:
    """A grader without a sandbox: plain comparison; dies of `deadly` references."""

    started = 0

    def __init__(self, deadly: str = "") -> None:
        self.deadly = deadly

    def __enter__(self) -> Any:
        FakeGrader.started += 1
        return self

    def __exit__(self, *ended: object) -> None:
        pass

    def ask(self, op: str, arrays: Any, expect: Any, *, reveals: bool) -> Any:
        answer, reference = (bytes(arrays[name]).decode() for name in ("answer", "reference"))
        if self.deadly and self.deadly in answer + reference:
            raise InvalidAnswer(Rejection.OUT_OF_MEMORY)
        if "?" in answer + reference:
            return {"mark": np.array([-1.0])}
        return {"mark": np.array([float(answer == reference)])}


def test_without_a_mark_two_references_count_as_alike() -> None:
    references = [f"?{i}" for i in range(20)]
    with pytest.raises(GraderError, match="no mark"):
        grade_with(FakeGrader, references, references, np.random.default_rng(0))
    references = ["?"] + [str(i) for i in range(20)]
    found = grade_with(FakeGrader, references, references, np.random.default_rng(0))
    assert (found.without_decoy, found.mean) == (1, 1.0)


def test_a_grader_that_dies_of_references_is_the_environments_fault() -> None:
    references = [str(i) for i in range(100, 130)]
    FakeGrader.started = 0
    with pytest.raises(GraderError, match="died 9 times"):
        grade_with(lambda: FakeGrader("1"), references, references, np.random.default_rng(0))
    assert FakeGrader.started == 9


def test_a_grader_that_dies_at_the_start_is_called_a_grader(grade: Grade) -> None:
    with pytest.raises(GraderError, match="the grader ended with code 7"):
        grade(REFERENCES, grader="import os; os._exit(7)")


def test_forged_answers_never_see_both_pairs_in_one_sandbox(grade: Grade, tmp_path: Path) -> None:
    """Under the backend without isolation, children can count what they saw, in a file."""
    place = tmp_path / "seen"
    place.mkdir()
    place.chmod(0o777)
    note = [
        forging(f"os.mkdir({str(place)!r} + f'/{i}-{{os.getppid()}}-{{reference}}'); mark(0.0)")
        for i in range(20)
    ]
    grade(note, REFERENCES[:20])
    seen = [re.fullmatch(r"(\d+)-(\d+)-(\d+)", name) for name in os.listdir(place)]
    pairs = [(int(m[1]), int(m[2]), m[3]) for m in seen if m]
    assert len(pairs) == 40
    assert len({(i, sandbox) for i, sandbox, _ in pairs}) == 40
    first = {sandbox for _, sandbox, _ in pairs}
    assert len(first) == 2
    real = [sandbox for i, sandbox, reference in pairs if reference == REFERENCES[i]]
    assert 2 < real.count(real[0]) < 18  # a coin decided which sandbox saw the real one
