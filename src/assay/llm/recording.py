"""Record what models answer, and give the same answers again without a provider.

A folder holds one file per answer, named by the question and the sample: `<hash>-<sample>.json`,
and `…-2.json` for the same question asked again (an idea that was submitted twice). Which answer
won is on record, too, and which were refused: where one won, a replay holds back those that came
too late, so that it makes the same codebases whatever the order in which answers come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from assay.domain.failure_codes import FailureCode
from assay.domain.ids import new_id
from assay.llm.executors import Executor, ImplementRequest, Limits, RequestId, identify
from assay.llm.executors import prompt_version as version_of
from assay.llm.interface import BadRequest, Completion, Gate, ModelError, OnTry, Stop, Try, Usage

_HASH = 32


class ReplayMiss(ModelError):
    """What is asked was not recorded."""

    code = FailureCode.REPLAY_MISS


class TooLate(ModelError):
    """The answer came too late to win when it was recorded, and must not win now."""

    code = FailureCode.TOO_LATE


#: What a recorded failure was.
_ERRORS = {kind.__name__: kind for kind in (ModelError, BadRequest)}
#: Answers whose verdict is not known yet, at most.
_MOST_OPEN = 10_000


class _Folder:
    """The files of a recording."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._asked: Counter[str] = Counter()

    def files(self, request: RequestId, sample: int) -> list[Path]:
        """All answers to a question of one sample, in the order in which it was asked."""
        stem = f"{request.hash[:_HASH]}-{sample}"
        found = [self.path / f"{stem}.json"]
        while found[-1].exists():
            found.append(self.path / f"{stem}-{len(found) + 1}.json")
        return found[:-1]

    def next_file(self, request: RequestId, sample: int) -> Path:
        """Where the next answer goes: over a call that was cancelled, else beside the others."""
        found = self.files(request, sample)
        for path in found:
            if read(path)["state"] == "cancelled":
                return path
        number = f"-{len(found) + 1}" if found else ""
        return self.path / f"{request.hash[:_HASH]}-{sample}{number}.json"

    def next_answer(self, request: RequestId, sample: int) -> dict[str, Any] | None:
        """The answer for who asks now; who asks more often than recorded gets the last one."""
        found = self.files(request, sample)
        if not found:
            return None
        key = f"{request.hash}-{sample}"
        self._asked[key] += 1
        return read(found[min(self._asked[key], len(found)) - 1])


def read(path: Path) -> dict[str, Any]:
    """A recorded answer."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    """All recorded answers of a folder, which may hold other files as well."""
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(ValueError):
            record = read(path)
            if isinstance(record, dict) and "request_hash" in record:
                yield record


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write whole or not at all: a process may be killed at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(path)


class RecordingExecutor:
    """Passes requests on, and writes down what is answered."""

    def __init__(self, inner: Executor, folder: Path) -> None:
        self._inner = inner
        self._folder = _Folder(folder)
        #: By the identity of the request, which is kept so that no other one gets it.
        self._files: OrderedDict[int, tuple[ImplementRequest, Path]] = OrderedDict()

    @property
    def name(self) -> str:
        return self._inner.name

    def prompt_version(self, request: ImplementRequest) -> str:
        """See `Executor.prompt_version`."""
        return self._inner.prompt_version(request)

    def identify(self, request: ImplementRequest) -> RequestId:
        """See `Executor.identify`."""
        return self._inner.identify(request)

    async def implement(
        self,
        request: ImplementRequest,
        *,
        on_try: OnTry | None = None,
        gate: Gate | None = None,
    ) -> Completion:
        """Ask, and keep the answer, or the error if it would come again. Raises ModelError."""
        began = time.monotonic()
        try:
            completion = await self._inner.implement(request, on_try=on_try, gate=gate)
        except asyncio.CancelledError:
            self._keep(request, began, state="cancelled")
            raise
        except ModelError as error:
            if not error.retryable:
                kept = {"error": type(error).__name__, "message": str(error)}
                self._keep(request, began, state="failed", **kept)
            raise
        answer = asdict(completion)
        del answer["request_id"]
        self._keep(request, began, state="answered", answer=answer)
        return completion

    def _keep(self, request: ImplementRequest, began: float, **content: Any) -> None:
        asked = self.identify(request)
        path = self._folder.next_file(asked, request.sample)
        self._files[id(request)] = (request, path)
        if len(self._files) > _MOST_OPEN:
            self._files.popitem(last=False)
        record = {
            "model": self.name,
            "request_hash": asked.hash,
            "prompt_version": self.prompt_version(request),
            "idea": request.idea_text,
            "sample": request.sample,
            "revision": request.revision,
            "log": request.patch_log,
            "seconds": round(time.monotonic() - began, 3),
            "refused": False,
            "won": False,
        }
        write(path, record | content)

    def note(self, request: ImplementRequest, **facts: bool) -> None:
        """Say of a recorded answer that it was `refused`, or that it `won`."""
        asked = self.identify(request)
        files = self._folder.files(asked, request.sample)
        kept = self._files.get(id(request))
        path = kept[1] if kept else (files[-1] if files else None)
        if path is not None:
            write(path, read(path) | facts)

    async def aclose(self) -> None:
        """Close what is recorded."""
        await self._inner.aclose()


class ReplayExecutor:
    """Answers from a recording. Needs no key, no SDK and no network."""

    def __init__(self, name: str, folder: Path, limits: Limits) -> None:
        self._name = name
        self._folder = _Folder(folder)
        self._limits = limits
        self._winners = {record["idea"] for record in _records(folder) if record["won"]}

    @property
    def name(self) -> str:
        return self._name

    def prompt_version(self, request: ImplementRequest) -> str:
        """See `Executor.prompt_version`."""
        return version_of(request)

    def identify(self, request: ImplementRequest) -> RequestId:
        """See `Executor.identify`."""
        return identify(self._name, request, self._limits)

    async def implement(
        self,
        request: ImplementRequest,
        *,
        on_try: OnTry | None = None,
        gate: Gate | None = None,
    ) -> Completion:
        """The recorded answer. No provider limits it: `gate` is not asked.

        Raises:
            ReplayMiss: it was not recorded, or no answer came before the recording ended.
            TooLate: a sibling won before it was answered or judged: here as there, that one wins.
            ModelError: it failed when it was recorded.
        """
        asked = self.identify(request)
        record = self._folder.next_answer(asked, request.sample)
        if record is None:
            raise ReplayMiss(self._missing(request, asked))
        if record["state"] == "failed":
            raise _ERRORS.get(record["error"], ModelError)(f"(recorded) {record['message']}")
        if request.idea_text in self._winners and not (record["refused"] or record["won"]):
            raise TooLate("when this was recorded, another sample had won before")
        if record["state"] == "cancelled":
            raise ReplayMiss(f"{self._missing(request, asked)}; this one was cancelled")
        completion = completion_of(record["answer"])
        if on_try is not None:
            call = new_id("call")
            await on_try(Try(call, 1, "started"))
            done = Try(call, 1, "returned", completion=completion, usage=completion.usage)
            await on_try(done)
        return completion

    def _missing(self, request: ImplementRequest, asked: RequestId) -> str:
        idea = " ".join(request.idea_text.split())[:80]
        same = [
            record for record in _records(self._folder.path) if record["idea"] == request.idea_text
        ]
        why = "the idea is not in the recording"
        if same:
            versions = {record["prompt_version"] for record in same}
            other = self.prompt_version(request) not in versions
            why = (
                "the prompts, or the environment's, have changed since"
                if other
                else f"of this idea {len(same)} other calls are: the codebase, the model, its "
                "limits, or what went before was another"
            )
        return (
            f"{self._folder.path} holds no answer to request {asked.hash[:12]} (sample "
            f"{request.sample}, revision {request.revision} of the idea {idea!r}): {why}"
        )

    async def aclose(self) -> None:
        """Nothing to close."""


def completion_of(stored: Mapping[str, Any]) -> Completion:
    return Completion(
        text=stored["text"],
        thinking=stored["thinking"],
        stop=cast(Stop, stored["stop"]),
        usage=Usage(**stored["usage"]),
        model=stored["model"],
    )


def is_replay(executor: Executor) -> bool:
    """Whether answers come from a recording, and so cost nothing."""
    return isinstance(executor, ReplayExecutor)


def note(executor: Executor, request: ImplementRequest, **facts: bool) -> None:
    """Tell a recording what became of an answer: `refused`, `won`."""
    if isinstance(executor, RecordingExecutor):
        executor.note(request, **facts)
