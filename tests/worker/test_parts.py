"""Failures, hardware classes, settings, collection, the cache, the HTTP client."""

import errno
import os
import socket
import stat
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from assay.contracts.worker import FinishRequest
from assay.domain.errors import AssayError, Fenced, InvalidInput, NotFound, Unavailable
from assay.domain.metrics import Direction
from assay.environments import Bundle
from assay.evaluation import EvaluationFailure, Rejection
from assay.patching.paths import is_protected
from assay.sandbox import Exit
from services.worker import collect
from services.worker.api import ApiRefused, WorkerApi
from services.worker.cache import BundleCache, Corrupt
from services.worker.failures import (
    fault_of,
    implausible,
    last_traceback_line,
    printable,
    read_bounds,
    score_failure,
    training_failure,
)
from services.worker.hardware import Cpu, hardware_class, read_cpu
from services.worker.settings import WorkerSettings
from services.worker.workspace import restore_protected

TRACEBACK = b"""loss 1.0
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
torch.OutOfMemoryError: tried to allocate 3 GiB
with a second line
atexit: bye
"""


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        (TRACEBACK, "torch.OutOfMemoryError: tried to allocate 3 GiB"),
        (
            b"Traceback (most recent call last):\n  x\nKeyError: 'a'\n\nDuring handling\n\n"
            b"Traceback (most recent call last):\n  y\nValueError: b\n",
            "ValueError: b",
        ),
        (
            b'  File "train.py", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n',
            "SyntaxError: invalid syntax",
        ),
        (b"...cut\n  File\nAssertionError\n", "AssertionError"),
        (b"no luck\n", None),
        (b"", None),
        (b"\xff\xfe Traceback (most recent call last):\n", None),
    ],
)
def test_last_traceback_line(tail: bytes, line: str | None) -> None:
    assert last_traceback_line(tail) == line


def ended(
    code: int, tail: bytes = b"", *, reason: str = "exited", certain: bool = True
) -> tuple[str, str]:
    end = Exit(reason, code, 12.5, 11.0, None, certain)  # type: ignore[arg-type]
    failed = training_failure(end, tail, wall=10)
    assert failed is not None
    body = failed.failure
    assert body.stage == "train"
    return body.code, body.message


def test_training_failures_say_what_happened() -> None:
    assert training_failure(Exit("exited", 0, 1, 1, None), TRACEBACK, wall=1) is None
    assert ended(3) == ("crashed", "exit code 3; nothing was logged")
    assert ended(3, b"a\nbye\n") == ("crashed", "exit code 3; last line of the log: bye")
    assert ended(-11) == ("crashed", "killed by SIGSEGV; nothing was logged")
    assert ended(137) == ("crashed", "exit code 137; nothing was logged")
    assert ended(-9, certain=False) == (
        "crashed",
        "exited with status 137 (128 + SIGKILL: killed by signal 9, or its own exit status); "
        "nothing was logged",
    )
    assert ended(1, b"a\nMemoryError\n") == ("memory_exceeded", "MemoryError")
    assert ended(-15, reason="wall")[0] == "wall_budget_exceeded"
    assert "12.5 s of 10 s" in ended(-15, reason="wall")[1]
    assert ended(-9, reason="cpu")[0] == "cpu_budget_exceeded"
    assert ended(-9, reason="memory")[0] == "memory_exceeded"
    assert ended(1, reason="disk")[0] == "disk_exceeded"
    assert ended(1, reason="processes")[0] == "processes_exceeded"
    assert ended(-9, reason="cancelled")[0] == "cancelled"


def blame(
    reason: str,
    code: int,
    *,
    seconds: float = 100.0,
    starved: float = 0.0,
    patience: float = 200.0,
) -> str:
    end = Exit(reason, code, seconds, 5.0, None, starved_seconds=starved)  # type: ignore[arg-type]
    failed = training_failure(end, b"", wall=50, patience=patience)
    assert failed is not None
    if failed.failure.retryable:
        return failed.failure.code
    return "unclear" if failed.unclear else "idea"


def test_blame_follows_what_the_kernel_saw() -> None:
    assert blame("wall", -15, seconds=260, starved=205) == "host_busy"
    assert blame("wall", -15, seconds=260, starved=200) == "host_busy", "with its grace"
    assert blame("wall", -15, seconds=249, starved=199) == "unclear"
    assert blame("wall", -15, seconds=250) == "unclear", "its worker was away: nobody counted"
    assert blame("wall", -15, starved=50) == "unclear"
    assert blame("wall", -15, starved=20) == "unclear"
    assert blame("wall", -15, starved=19) == "idea", "it slept for the rest"
    assert blame("wall", -15) == "idea"
    assert blame("wall", -15, starved=60, patience=0) == "idea", "on GPUs wall clock is the budget"
    assert blame("host_memory", -9) == "host_out_of_memory"
    assert blame("memory", -9) == "idea"
    for signal_that_anyone_sends in (1, 2, 9, 15):
        assert blame("exited", -signal_that_anyone_sends) == "unclear"
    for crash in (-4, -6, -7, -11, 1, 137):
        assert blame("exited", crash) == "idea"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Corrupt("torn"), "corrupt_transfer"),
        (Unavailable("away"), "unavailable"),
        (ApiRefused("no", code="object_store_denied"), "object_store_denied"),
        (ApiRefused("no", code="invalid"), "api_refused"),
        (ApiRefused("no", code="too_large"), "api_refused"),
        (NotFound("gone"), "api_refused"),
        (InvalidInput("odd"), "worker_error"),
        (collect.UnsafeArtifact("a link"), "worker_error"),
    ],
)
def test_an_error_ends_an_attempt_with_a_registered_code_that_is_tried_again(
    error: AssayError, code: str
) -> None:
    end = fault_of(error)
    assert end.failure is not None
    assert (end.failure.stage, end.failure.code, end.failure.retryable) == ("start", code, True)
    assert str(error) in end.failure.message
    assert end.is_retried


def test_bounds_that_are_none_are_the_environments_fault(tmp_path: Path) -> None:
    (tmp_path / "bounds.json").write_text("[]")
    with pytest.raises(InvalidInput) as refused:
        read_bounds(tmp_path)
    assert refused.value.code == "prepare_failed"


def test_messages_are_printable_and_bounded() -> None:
    assert (
        printable("a\x00\x1b[31mb\nc")
        == "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31mb\nc"
    )
    long = printable("start" + "x" * 10_000 + "end")
    assert len(long) <= 500
    assert long.startswith("start")
    assert long.endswith("end")


def test_score_failures_tell_the_sentence_and_not_the_detail() -> None:
    failed = score_failure(
        EvaluationFailure.of(Rejection.PREDICTOR_DIED, "ended with code 107\nKeyError: 1")
    )
    assert failed.failure.message == Rejection.PREDICTOR_DIED.sentence
    assert (failed.failure.stage, failed.failure.retryable) == ("score", False)
    interrupted = EvaluationFailure.of(Rejection.INTERRUPTED, "no user id is free")
    failed = score_failure(interrupted)
    assert failed.failure.message == Rejection.INTERRUPTED.sentence
    assert (failed.failure.code, failed.failure.retryable) == ("evaluation_interrupted", True)


@pytest.mark.parametrize(
    ("direction", "bound", "metric", "refused"),
    [
        (Direction.MINIMIZE, 0.3, 0.29, True),
        (Direction.MINIMIZE, 0.3, 0.3, False),
        (Direction.MAXIMIZE, 0.9, 0.91, True),
        (Direction.MAXIMIZE, 0.9, 0.5, False),
        (Direction.MAXIMIZE, None, 1e9, False),
    ],
)
def test_implausible(
    direction: Direction, bound: float | None, metric: float, refused: bool
) -> None:
    assert (implausible(direction, {"m": metric}, {"m": bound}) is not None) is refused


@pytest.mark.parametrize(
    ("machine", "flags", "name"),
    [
        ("x86_64", "avx2 avx512f avx512_bf16 amx_bf16", "cpu-amx"),
        ("x86_64", "avx2 avx512f avx512_bf16", "cpu-bf16"),
        ("x86_64", "avx2 avx512f", "cpu-avx512"),
        ("x86_64", "sse avx2", "cpu-avx2"),
        ("x86_64", "sse", "cpu"),
        ("aarch64", "asimd bf16", "cpu-arm64"),
        ("arm64", "", "cpu-arm64"),
    ],
)
def test_hardware_class(machine: str, flags: str, name: str) -> None:
    assert hardware_class(Cpu("x", machine, frozenset(flags.split()))) == name


def test_cpu_is_read_from_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nmodel name\t: Fast: One\nflags\t: fpu avx2\n\nflags : no\n")
    cpu = read_cpu(path)
    assert (cpu.model, cpu.flags) == ("Fast: One", frozenset({"fpu", "avx2"}))
    assert read_cpu(tmp_path / "missing").flags == frozenset()


def test_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSAY_WORKER_TOKEN", "secret-token")
    monkeypatch.setenv("ASSAY_WORKER_CACHE", str(tmp_path))
    monkeypatch.setenv("ASSAY_WORKER_NAME", "a/b")
    settings = WorkerSettings()
    assert settings.scratch_folder == tmp_path / "scratch" / "a_b"
    assert "secret-token" not in repr(settings)
    monkeypatch.setenv("ASSAY_WORKER_CPU", "4")
    with pytest.raises(ValidationError, match="did you mean ASSAY_WORKER_CPUS"):
        WorkerSettings()
    with pytest.raises(ValidationError, match="http://"):
        WorkerSettings(api_url="localhost:8000")
    with pytest.raises(ValidationError, match="ASCII"):
        WorkerSettings(token="two words")


@pytest.fixture
def out(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "out"
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "a.bin").write_bytes(b"a" * 1000)
    (path / "b.json").write_text("{}")
    with collect.opened_folder(str(path)) as descriptor:
        yield path, descriptor


BOUNDS = collect.Bounds(files=10, bytes=10_000)


def test_modes_times_and_attributes_of_an_artifact_are_made_equal(tmp_path: Path) -> None:
    """A predictor can read them, and its secret positions do not depend on them."""
    seen = []
    for second, mode in ((7, 0o400), (8, 0o777)):
        out = tmp_path / str(second)
        (out / "deep").mkdir(parents=True)
        outside = tmp_path / f"outside-{second}"
        outside.write_text("x")
        for path in (out / "model", out / "deep" / "a"):
            path.write_text("weights")
            os.setxattr(path, "user.message", str(second).encode())
        (out / "link").symlink_to(outside)
        os.mkfifo(out / "pipe")  # would block
        for path in (out / "deep" / "a", out / "model", out / "deep", out, outside):
            path.chmod(mode | 0o500 if path.is_dir() else mode)
            os.utime(path, ns=(second, second))
        with collect.opened_folder(str(out)) as descriptor:
            collect.normalise(descriptor)
        paths = (out, out / "model", out / "deep", out / "deep" / "a")
        found = [(p.stat().st_mode, p.stat().st_mtime_ns, os.listxattr(p)) for p in paths]
        seen.append(found)
        assert outside.stat().st_mtime_ns == second
    assert seen[0] == seen[1]
    assert [stat.S_IMODE(mode) for mode, _, _ in seen[0]] == [0o755, 0o644, 0o755, 0o644]
    assert not any(names for _, _, names in seen[0])


def test_names_of_empty_folders_do_not_reach_a_predictor(tmp_path: Path) -> None:
    for name in ("model/deep/empty", "corpus one", "kept"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "kept" / "weights").write_text("w")
    with collect.opened_folder(str(tmp_path)) as descriptor:
        collect.normalise(descriptor)
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == [
        "kept",
        "kept/weights",
    ]


def test_reading_an_artifact_leaves_no_mark_in_it(tmp_path: Path) -> None:
    """A page of a hole in a file in memory is there once it was read, also through a mapping that
    cannot be written to."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        folder = Path(shared)
        (folder / "deep").mkdir()
        for path, size in ((folder / "deep" / "sparse", 3_000_000), (folder / "end", 100)):
            with path.open("wb") as file:
                file.truncate(size)
                os.pwrite(file.fileno(), b"weights", 5_000 % size)
        with collect.opened_folder(shared) as descriptor:
            collect.normalise(descriptor)
            found = collect.scan(descriptor, collect.Bounds(files=10, bytes=1 << 30))
            before = collect.fingerprint(descriptor, found)
            collect.fill_holes(descriptor, found)
            assert collect.fingerprint(descriptor, found) == before
        for path in (folder / "deep" / "sparse", folder / "end"):
            with path.open("rb") as file:
                assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == path.stat().st_size
            assert path.stat().st_mtime_ns == 0


def test_the_archive_depends_on_content_alone(out: tuple[Path, int], tmp_path: Path) -> None:
    path, descriptor = out
    log = tmp_path / "train.log"
    log.write_text("hello")
    made = []
    for name in ("one.zip", "two.zip"):
        os.utime(path / "b.json", (time.time(), 1e9))
        found = collect.scan(descriptor, BOUNDS)
        made.append(collect.build_archive(descriptor, found, [log], tmp_path / name).read_bytes())
    assert made[0] == made[1]
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.namelist() == ["artifact/b.json", "artifact/sub/a.bin", "logs/train.log"]
        assert archive.testzip() is None


@pytest.mark.parametrize("what", ["file_link", "folder_link", "fifo", "socket", "name", "deep"])
def test_what_is_not_collected(out: tuple[Path, int], what: str) -> None:
    path, descriptor = out
    if what == "file_link":
        (path / "sub" / "x").symlink_to("a.bin")
    elif what == "folder_link":
        (path / "x").symlink_to("/etc")
    elif what == "fifo":
        os.mkfifo(path / "x")
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path / "x"))
    elif what == "name":
        (path / "a\nb").touch()
    else:
        (path / "/".join("d" * 20)).mkdir(parents=True)
    with pytest.raises(collect.UnsafeArtifact):
        collect.scan(descriptor, BOUNDS)


def test_bounds_of_the_artifact(out: tuple[Path, int]) -> None:
    _, descriptor = out
    for bounds in (collect.Bounds(1, 10_000), collect.Bounds(10, 1001)):
        with pytest.raises(collect.UnsafeArtifact, match="holds more than"):
            collect.scan(descriptor, bounds)


def test_a_file_replaced_after_the_scan_is_refused(out: tuple[Path, int], tmp_path: Path) -> None:
    path, descriptor = out
    found = collect.scan(descriptor, BOUNDS)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "a.bin").write_bytes(b"s" * 1000)
    (path / "sub").rename(path / "old")
    (path / "sub").symlink_to(secret)
    with pytest.raises(collect.UnsafeArtifact):
        collect.build_archive(descriptor, found, [], tmp_path / "x.zip")


def test_a_full_disk_of_the_host_is_not_blamed_on_the_artifact(
    out: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is room again by the time the archive is closed."""
    plain = zipfile.ZipFile.open

    def full(archive: zipfile.ZipFile, *rest: Any, **more: Any) -> Any:
        file = plain(archive, *rest, **more)

        def write(_: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(file, "write", write)
        return file

    _, descriptor = out
    found = collect.scan(descriptor, BOUNDS)
    monkeypatch.setattr(zipfile.ZipFile, "open", full)
    with pytest.raises(OSError, match="No space left"):
        collect.build_archive(descriptor, found, [], tmp_path / "x.zip")


def test_protected_files() -> None:
    baseline = {"predict.py": b"good", "lib/x.py": b"x", "train.py": b"t"}
    files = {"Predict.py": b"bad", "lib/y.py": b"y", "train.py": b"changed"}
    kept, restored = restore_protected(files, baseline, ["predict.py", "lib/*"])
    assert kept == {"predict.py": b"good", "lib/x.py": b"x", "train.py": b"changed"}
    assert restored == ["Predict.py", "lib/x.py", "lib/y.py", "predict.py"]
    shadows = {"predict/__init__.py": b"bad", "predict.abi3.so": b"bad", "lib.py": b"bad"}
    kept, restored = restore_protected(baseline | shadows, baseline, ["predict.py", "lib/*"])
    assert kept == baseline
    assert restored == sorted(shadows)
    assert is_protected("lib/deep/z.py", ["lib"])
    assert not is_protected("library.py", ["lib"])


def test_bundles_are_fetched_once_and_verified(environment: Bundle, tmp_path: Path) -> None:
    asked: list[str] = []

    def fetch(sha256: str) -> bytes:
        asked.append(sha256)
        return environment.data

    sha256 = environment.sha256
    bundle = BundleCache(tmp_path, fetch).bundle(sha256)
    assert bundle.environment.name == "tiny"
    again = BundleCache(tmp_path, fetch)  # as after a restart
    assert again.bundle(sha256) is again.bundle(sha256)
    assert asked == [sha256]
    (bundle.folder / "evaluator" / "evaluate.py").write_text("tampered")
    assert BundleCache(tmp_path, fetch).bundle(sha256).evaluator == bundle.evaluator
    assert asked == [sha256] * 2
    for wrong in ("f" * 64, "../../etc"):
        with pytest.raises(Corrupt):
            again.bundle(wrong)
    assert [p.name for p in (tmp_path / "bundles").iterdir()] == [sha256]


def client(*answers: httpx2.Response | Exception) -> tuple[WorkerApi, list[httpx2.Request]]:
    """A client whose requests get these answers in turn, then the last one again."""
    seen: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        request.read()
        seen.append(request)
        answer = answers[min(len(seen), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)

    transport = httpx2.MockTransport(handle)
    return WorkerApi("http://api", "token", transport=transport), seen


FINISH = FinishRequest(lease_token=1, state="succeeded")
OK = httpx2.Response(200, content=b'{"state": "succeeded"}')


def test_calls_are_repeated_until_they_succeed(tmp_path: Path) -> None:
    api, seen = client(
        httpx2.ConnectError("no"), httpx2.Response(503), httpx2.ReadTimeout("t"), OK
    )
    with api:
        assert api.finish("att_1", FINISH, patience=30).state == "succeeded"
    assert len(seen) == 4
    assert len({request.content for request in seen}) == 1
    assert seen[0].headers["Authorization"] == "Bearer token"
    large = tmp_path / "artifact.zip"
    large.write_bytes(os.urandom(3 << 20))
    entry = {"name": "artifact.zip", "bytes": 1, "sha256": "0" * 64}
    here = httpx2.Response(200, json={"url": None})  # no store of its own: to the API itself
    api, seen = client(here, httpx2.Response(500), here, httpx2.Response(200, json=entry))
    with api:
        api.upload("att_1", 1, large, patience=30)
    sent = [request for request in seen if request.method == "PUT"]
    assert [request.content for request in sent] == [large.read_bytes()] * 2
    assert sent[1].headers["Content-Length"] == str(3 << 20)


def test_patience_ends() -> None:
    api, seen = client(httpx2.Response(503))
    with api, pytest.raises(Unavailable, match="HTTP 503"):
        api.finish("att_1", FINISH, patience=0.4)
    assert 2 <= len(seen) <= 6
    api, seen = client(httpx2.Response(429, headers={"Retry-After": "7"}))
    with api, pytest.raises(Unavailable):
        api.finish("att_1", FINISH, patience=5)
    assert len(seen) == 1


def test_tries_end_when_the_attempt_is_given_up() -> None:
    api, _ = client(httpx2.Response(503))
    give_up = threading.Event()
    threading.Timer(0.2, give_up.set).start()
    began = time.monotonic()
    with api, pytest.raises(Unavailable):
        api.finish("att_1", FINISH, patience=60, give_up=give_up)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx2.Response(409, json={"title": "", "status": 409, "code": "fenced"}), Fenced),
        (httpx2.Response(404, json={"title": "", "status": 404, "code": "not_found"}), NotFound),
        (httpx2.Response(404, text="<html>"), ApiRefused),
        (httpx2.Response(422, json={"title": "", "status": 422, "code": "invalid"}), ApiRefused),
        (httpx2.Response(200, text="<html>"), ApiRefused),
    ],
)
def test_refusals_are_not_repeated(answer: httpx2.Response, error: type[Exception]) -> None:
    api, seen = client(answer)
    with api, pytest.raises(error):
        api.finish("att_1", FINISH, patience=30)
    assert len(seen) == 1
