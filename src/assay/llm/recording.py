"""Record what models answer, and give the same answers again without a provider.

A folder holds one file per answer, named by the question and the sample: `<hash>-<sample>.json`,
and `…-2.json` for the same question asked again (an idea that was submitted twice). Which answer
won is on record, too, and which were refused: where one won, a replay holds back those that came
too late, so that it makes the same codebases whatever the order in which answers come.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from assay.domain.ids import new_id
from assay.llm.executors import Executor, ImplementRequest, Limits, RequestId, identify
from assay.llm.executors import prompt_version as version_of
from assay.llm.interface import Completion, Gate, ModelError, OnTry, Stop, Try, Usage

_HASH = 32


class ReplayMiss(ModelError):
    """What is asked was not recorded."""


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


def _write(path: Path, record: Mapping[str, Any]) -> None:
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
        self._files: dict[tuple[str, int], Path] = {}

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
        self._files[asked.hash, request.sample] = path
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
        _write(path, record | content)

    def note(self, request: ImplementRequest, **facts: bool) -> None:
        """Say of a recorded answer that it was `refused`, or that it `won`."""
        asked = self.identify(request)
        files = self._folder.files(asked, request.sample)
        path = self._files.get((asked.hash, request.sample)) or (files[-1] if files else None)
        if path is not None:
            _write(path, read(path) | facts)

    async def aclose(self) -> None:
        """Close what is recorded."""
        await self._inner.aclose()


class ReplayExecutor:
    """Answers from a recording. Needs no key, no SDK and no network."""

    def __init__(self, name: str, folder: Path, limits: Limits) -> None:
        self._name = name
        self._folder = _Folder(folder)
        self._limits = limits
        records = map(read, folder.glob("*.json"))
        self._winners = {record["idea"] for record in records if record["won"]}

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

        A call that was cancelled when it was recorded, or whose answer came too late to win, does
        not return if a sibling did win: here as there, that one wins.

        Raises:
            ReplayMiss: it was not recorded, or no answer came before the recording ended.
            ModelError: it failed when it was recorded.
        """
        asked = self.identify(request)
        record = self._folder.next_answer(asked, request.sample)
        if record is None:
            raise ReplayMiss(self._missing(request, asked))
        if request.idea_text in self._winners and not (record["refused"] or record["won"]):
            await asyncio.get_running_loop().create_future()
        if record["state"] == "cancelled":
            raise ReplayMiss(f"{self._missing(request, asked)}; this one was cancelled")
        if record["state"] == "failed":
            raise ModelError(f"{record['error']} (recorded): {record['message']}")
        completion = _completion(record["answer"])
        if on_try is not None:
            call = new_id("call")
            await on_try(Try(call, 1, "started"))
            done = Try(call, 1, "returned", completion=completion, usage=completion.usage)
            await on_try(done)
        return completion

    def _missing(self, request: ImplementRequest, asked: RequestId) -> str:
        idea = " ".join(request.idea_text.split())[:80]
        same = [
            record
            for record in map(read, sorted(self._folder.path.glob("*.json")))
            if record["idea"] == request.idea_text
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


def _completion(stored: Mapping[str, Any]) -> Completion:
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
