"""A small in-memory Assay service: the API's shapes and rules, with results made up at once.

It is called directly (httpx2's MockTransport) or over real HTTP (`answers.serve`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2

from assay.contracts.annotation import AnnotationRequest
from assay.contracts.batch import BatchOptions, BatchRequest, IdeaRequest
from assay.contracts.search import (
    DecisionRequest,
    EpochRequest,
    ExtendRequest,
    FinishRequest,
    IdeatorCallBody,
    IdeatorCallEndRequest,
    IdeatorCallRequest,
    PauseRequest,
    SearchRequest,
)
from assay.contracts.worker import CordonRequest
from assay.domain.hashing import derive_seed, tree_hash
from assay.domain.metrics import Direction, RewardKind, reward
from assay.domain.verdicts import Measured, judge
from tests.support.fake_answers import event_stream, ok, page, problem

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).isoformat()
FOREVER = datetime(9999, 12, 31, tzinfo=UTC).isoformat()
BASELINE = [2.50, 2.52, 2.48, 2.51, 2.49]
STATE = ("submitted", "implementing", "queued", "running")

CODEBASE = {"train.py": "rate = 0.1\nwidth = 4\ndepth = 2\n", "predict.py": "pass\n"}
KNOBS = [
    {"name": "rate", "title": "rate", "file": "train.py", "line": "rate = 0.1",
     "values": ["0.2", "0.4", "0.05"]},
    {"name": "width", "title": "width", "file": "train.py", "line": "width = 4",
     "values": ["8", "16", "2"]},
    {"name": "depth", "title": "depth", "file": "train.py", "line": "depth = 2",
     "values": ["3", "4", "1"]},
]  # fmt: skip
RECIPES = [
    {"name": "absent", "title": "Edit what is not there", "kind": "misfit",
     "edits": [{"file": "train.py", "search": "no such line\n", "replace": "x\n"}]},
    {"name": "boom", "title": "Divide by zero", "kind": "crash",
     "edits": [{"file": "train.py", "search": "depth = 2\n", "replace": "depth = 2\n1 / 0\n"}]},
]  # fmt: skip


def outcome(text: str) -> float | dict[str, Any]:
    """A metric that depends on the idea alone, or a failure."""
    if "absent" in text:
        return {"stage": "implement", "code": "no_match", "message": "context not found"}
    if "boom" in text:
        trace = "Traceback\n  line 4\nZeroDivisionError: \x1b[31mdivision\x1b[0m by zero"
        return {"stage": "train", "code": "crashed", "message": trace}
    return 2.3 + derive_seed(text) % 1000 / 2000


class Refused(Exception):
    """Answered with a problem."""

    def __init__(self, status: int, code: str, detail: str = "") -> None:
        super().__init__(detail or code)
        self.status, self.code = status, code


def annotated(request: httpx2.Request, stored: dict[str, Any]) -> httpx2.Response:
    """Give what is stored new tags or a new note."""
    asked = AnnotationRequest.model_validate_json(request.content).model_dump(exclude_none=True)
    stored.update(asked)
    return ok(stored)


def with_tag(request: httpx2.Request, stored: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with the tag that is asked for, if one is."""
    tag = request.url.params.get("tag")
    return [each for each in stored if tag is None or tag in each.get("tags", ())]


@dataclass
class Fault:
    """The next matching request is answered with this instead."""

    method: str
    path: str
    status: int
    code: str = "boom"
    headers: dict[str, str] = field(default_factory=dict)
    after: bool = False
    """Carry the request out first: the answer is lost, the effect is not."""


class FakeService:
    """State and handlers; `requests` lists (method, path, idempotency key) as they arrived."""

    def __init__(self, outcome: Callable[[str], float | dict[str, Any]] = outcome) -> None:
        self.outcome = outcome
        """The metric or the failure of an idea, by its text."""
        self.environment_id = "fake@abc"
        self.splits: list[dict[str, Any]] = []
        self.baseline: dict[str, Any] = {}
        """What is otherwise about the baseline."""
        self.batches: dict[str, dict[str, Any]] = {}
        self.experiments: dict[str, list[dict[str, Any]]] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.searches: dict[str, dict[str, Any]] = {}
        self.epochs: dict[str, list[dict[str, Any]]] = {}
        self.ideator_calls: dict[str, dict[str, Any]] = {}
        #: Codes with which the next calls are refused.
        self.call_refusals: list[str] = []
        """What ideators answered, by the id of the call."""
        self.keys: dict[str, str] = {}
        self.measurements: list[dict[str, Any]] = []
        self.worker: dict[str, Any] = {}
        self.scheduled = True
        self.measuring: list[dict[str, Any]] = []
        """What is otherwise about the one worker."""
        self.more_workers: list[dict[str, Any]] = []
        """What is otherwise about further ones, which can only be listed."""
        self.alike: dict[str, list[dict[str, Any]]] = {}
        """Earlier ideas that the idea of a text is like."""
        self.priced: dict[str, Any] = {}
        """What else a dry run answers."""
        self.calls: list[dict[str, Any]] = []
        self.report: list[dict[str, Any]] = []
        """Rows of the execution report."""
        self.calibrated = 0
        self.asked_seeds: list[list[int] | None] = []
        """The seeds of each request for the baseline."""
        self.failures: list[dict[str, Any]] = []
        """Baseline seeds that failed, until they are asked for again."""
        self.to_come = 0
        """Baseline seeds that a finished batch still lacks; each look at it finishes one."""
        self.pending = 0
        """Baseline measurements that are pending; each look at it finishes one."""
        self.requests: list[tuple[str, str, str | None]] = []
        self.queries: list[str] = []
        self.faults: list[Fault] = []
        self.cut_streams: list[int] = []
        """Each stream takes one number from here and breaks after so many events."""
        self.last_event_ids: list[str | None] = []
        self.streams = True
        self.no_streams = (406, "no_streams")
        """Status and code of the answer where `streams` is false."""
        self.forgetful = False
        """Streams begin at the first event, whatever `Last-Event-ID` says."""
        self.distinct_code = False
        """Ideas in different words have different codebases."""
        self.unfinished = False
        """New batches stay unfinished until somebody calls `finish_all`."""
        self.agreement = "to the digit"
        """What reproductions come to."""
        self.differing: str | None = None
        """Why no worker can reproduce anything."""
        self.finish_on_look = False
        """An unfinished batch is finished as soon as its events are asked for."""
        self.batch_options: list[BatchOptions] = []
        self._lock = threading.RLock()

    # -- entry ------------------------------------------------------------------------------

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        with self._lock:
            path = request.url.path
            key = request.headers.get("idempotency-key")
            self.requests.append((request.method, path, key))
            self.queries.append(request.url.query.decode())
            fault = self._fault(request.method, path)
            try:
                response = None
                if fault is None or fault.after:
                    response = self._route(request, path)
                if fault is not None:
                    return problem(fault.status, fault.code, headers=fault.headers)
                assert response is not None
                return response
            except Refused as error:
                return problem(error.status, error.code, str(error))

    def _fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.method == method and re.fullmatch(fault.path, path):
                self.faults.remove(fault)
                return fault
        return None

    def _route(self, request: httpx2.Request, path: str) -> httpx2.Response:
        for method, pattern, handler in self._routes():
            match = re.fullmatch(pattern, path)
            if match and method == request.method:
                return handler(request, *match.groups())
        raise Refused(404, "not_found", f"no route {request.method} {path}")

    @property
    def queue(self) -> dict[str, Any]:
        """The queue: what a test says is measured, and nothing to implement."""
        return {
            "at": NOW,
            "scheduled": self.scheduled,
            "implementing": EMPTY_STAGE,
            "measuring": self.measuring,
        }

    def _routes(self) -> list[tuple[str, str, Callable[..., httpx2.Response]]]:
        id_ = "([^/]+)"
        return [
            ("GET", "/v1/version", lambda r: ok({"version": "9.9"})),
            ("POST", "/v1/batches", self._create_batch),
            ("GET", "/v1/batches", self._list_batches),
            ("GET", f"/v1/batches/{id_}", lambda r, b: ok(self._batch(b))),
            ("POST", f"/v1/batches/{id_}/cancel", self._cancel_batch),
            ("GET", f"/v1/batches/{id_}/events", self._events),
            ("GET", f"/v1/batches/{id_}/calls", self._list_calls),
            ("GET", "/v1/reports/execution", self._report),
            ("GET", "/v1/experiments", self._list_experiments),
            ("GET", f"/v1/experiments/{id_}", lambda r, e: ok(self._experiment(e))),
            ("PATCH", f"/v1/experiments/{id_}", lambda r, e: annotated(r, self._experiment(e))),
            ("GET", f"/v1/experiments/{id_}/diff", self._diff),
            ("GET", f"/v1/experiments/{id_}/logs", self._logs),
            ("GET", f"/v1/experiments/{id_}/curves", self._curves),
            ("GET", f"/v1/experiments/{id_}/result", self._result),
            ("POST", f"/v1/experiments/{id_}/cancel", lambda r, e: ok(self._experiment(e))),
            ("POST", f"/v1/experiments/{id_}/retry", self._retry_experiment),
            ("POST", f"/v1/experiments/{id_}/reproduce", self._reproduce),
            ("GET", f"/v1/experiments/{id_}/bundle", self._bundle),
            ("GET", "/v1/environments", lambda r: page([self.environment()], r)),
            ("GET", "/v1/environments/([^/]+)", self._get_environment),
            ("GET", "/v1/environments/[^/]+/codebase",
             lambda r: ok({"id": "0" * 64, "environment": "toy@1", "files": CODEBASE})),
            ("GET", "/v1/environments/[^/]+/baseline", lambda r: ok(self._baseline())),
            ("POST", "/v1/environments/[^/]+/baseline", self._calibrate),
            ("GET", "/v1/environments/[^/]+/fit", lambda r: ok(self._fit(0))),
            ("POST", "/v1/environments/[^/]+/fit", lambda r: ok(self._fit(1), 201)),
            ("GET", f"/v1/measurements/{id_}/logs", self._measurement_log),
            ("GET", "/v1/measurements", lambda r: page(self.measurements, r)),
            ("GET", f"/v1/measurements/{id_}", lambda r, m: ok(self._known_measurement(m))),
            ("POST", f"/v1/measurements/{id_}/retry", self._retry_measurement),
            ("GET", "/v1/conditions", lambda r: page(CONDITIONS, r)),
            ("GET", "/v1/queue", lambda r: ok(self.queue)),
            ("GET", "/v1/workers", lambda r: page(self._workers(), r)),
            ("GET", "/v1/workers/(here|wrk_1)", lambda r, w: ok(WORKER | self.worker)),
            ("POST", "/v1/workers/(here|wrk_1)/(cordon|uncordon|remove)", self._change_worker),
            ("POST", "/v1/searches", self._create_search),
            ("GET", "/v1/searches", lambda r: page(with_tag(r, self.searches.values()), r)),
            ("GET", f"/v1/searches/{id_}", lambda r, s: ok(self._search(s))),
            ("PATCH", f"/v1/searches/{id_}", lambda r, s: annotated(r, self.searches[s])),
            ("POST", f"/v1/searches/{id_}/(cancel|finish)", self._close_search),
            ("POST", f"/v1/searches/{id_}/epochs/(\\d+)/pause", self._pause_after),
            ("POST", f"/v1/searches/{id_}/pause", lambda r, s: ok(self.pause(s))),
            ("POST", f"/v1/searches/{id_}/extend", self._extend_search),
            ("POST", f"/v1/searches/{id_}/resume", self._resume_search),
            ("GET", f"/v1/searches/{id_}/epochs", lambda r, s: page(self.epochs[s], r)),
            ("GET", f"/v1/searches/{id_}/calls", self._list_ideator_calls),
            ("PUT", f"/v1/searches/{id_}/calls/{id_}", self._begin_call),
            ("PUT", f"/v1/searches/{id_}/calls/{id_}/end", self._end_call),
            ("PUT", f"/v1/searches/{id_}/epochs/(\\d+)/decision", self._put_decision),
            ("PUT", f"/v1/searches/{id_}/epochs/(\\d+)", self._put_epoch),
            ("POST", f"/v1/searches/{id_}/epochs/(\\d+)/batch", self._submit_epoch),
        ]  # fmt: skip

    # -- workers ----------------------------------------------------------------------------

    def _workers(self) -> list[dict[str, Any]]:
        return [WORKER | own for own in (self.worker, *self.more_workers)]

    def _change_worker(self, request: httpx2.Request, _: str, verb: str) -> httpx2.Response:
        if verb == "cordon":
            asked = CordonRequest.model_validate_json(request.content)
            until = FOREVER if asked.seconds is None else NOW
            self.worker |= {"cordoned_until": until, "cordon_reason": asked.reason}
        elif verb == "uncordon":
            self.worker |= {"cordoned_until": None, "cordon_reason": None}
        else:
            self.worker |= {"state": "removed", "running": []}
        return ok(WORKER | self.worker)

    # -- batches ----------------------------------------------------------------------------

    def _create_batch(self, request: httpx2.Request) -> httpx2.Response:
        asked = BatchRequest.model_validate_json(request.content)
        if asked.environment.partition("@")[0] != "fake":
            raise Refused(404, "not_found", "no such environment")
        if request.url.params.get("dry_run") == "true":
            size = {"ideas": len(asked.ideas), "measurements": len(asked.ideas)}
            return ok(size | self.priced)
        key = request.headers.get("idempotency-key", "")
        if key not in self.keys:
            self.keys[key] = self._store_batch(asked)
        return ok(self._batch(self.keys[key]), 202)

    def _store_batch(self, asked: BatchRequest) -> str:
        id_ = f"bat_{len(self.batches):026d}"
        body, experiments = self._new_batch(asked, id_, asked.ideas)
        self.batches[id_] = body
        self.experiments[id_] = experiments
        self.events[id_] = []
        for experiment in experiments:
            for state in STATE[1:]:
                self._event(id_, "experiment.changed", experiment["id"], {"state": state})
        if not self.unfinished:
            self.finish(id_)
        return id_

    def _new_batch(
        self, asked: BatchRequest, id_: str, ideas: list[IdeaRequest]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        experiments = [
            self._new_experiment(id_, position, idea) for position, idea in enumerate(ideas)
        ]
        counts = {"total": len(experiments), "running": len(experiments)}
        body = {
            "id": id_, "owner": "local", "environment": "fake@abc", "profile": asked.profile,
            "hardware_class": "cpu-fake", "executor": asked.executor, "ideator": asked.ideator,
            "state": "running", "counts": counts, "funnel": {}, "usage": {"cost_usd": "0.25"},
            "baseline": {"mean": 2.5, "spread": 0.0158, "n": 5, "pending": 0}, "best": None,
            "options": asked.options.model_dump(mode="json"), "search": asked.search,
            "epoch": asked.epoch, "metadata": {}, "created_at": NOW, "finished_at": None,
            "links": {"self": "", "experiments": "", "events": ""},
        }  # fmt: skip
        return body, experiments

    def _new_experiment(self, batch: str, position: int, idea: IdeaRequest) -> dict[str, Any]:
        id_ = f"exp_{batch[-6:]}{position:020d}"
        return {
            "id": id_, "batch": batch, "position": position, "state": "running",
            "idea": {"id": "idea_x", "text": idea.text, "client_key": idea.client_key,
                     "operator": idea.operator, "parents": idea.parents,
                     "similar": self.alike.get(idea.text, [])},
            "is_terminal": False, "failure": None, "implementation": "impl_x", "codebase": None,
            "measurements": [], "metric_name": "loss", "metric": None, "reward": 0.0,
            "comparison": None, "seconds": None, "created_at": NOW, "finished_at": None,
        }  # fmt: skip

    def finish(self, batch: str) -> None:
        """Give every experiment of a batch its result."""
        for experiment in self.experiments[batch]:
            self.finish_experiment(experiment)

    def finish_experiment(self, experiment: dict[str, Any]) -> None:
        """Give an experiment its result, on as many seeds as its batch has. The last one of a
        batch finishes it."""
        baseline = Measured.of(dict(enumerate(BASELINE)))
        assert baseline is not None
        batch = experiment["batch"]
        result = self.outcome(experiment["idea"]["text"])
        experiment.update(is_terminal=True, finished_at=NOW, seconds=3.5)
        if isinstance(result, dict):
            experiment.update(state="failed", failure=result)
        else:
            seeds = self.batches[batch]["options"]["seeds"] if batch in self.batches else [0]
            measured = Measured.of(dict.fromkeys(seeds, result))
            assert measured is not None
            judged = judge(Direction.MINIMIZE, measured, baseline)
            experiment.update(
                state="succeeded", metric=result, codebase=self.codebase_of(experiment),
                reward=reward(RewardKind.RECIPROCAL, result),
                comparison={
                    "baseline_mean": 2.5, "baseline_spread": 0.0158, "baseline_n": 5,
                    "n": len(seeds), "effect": judged.effect,
                    "standard_error": judged.standard_error,
                    "sigmas": judged.sigmas, "degrees_of_freedom": judged.df,
                    "low": judged.low, "high": judged.high, "p": judged.p,
                    "posterior": judged.posterior, "p_improves": judged.p_improves,
                    "verdict": judged.verdict.value,
                },
            )  # fmt: skip
        state = {"state": experiment["state"]}
        self._event(batch, "experiment.changed", experiment["id"], state)
        if all(each["is_terminal"] for each in self.experiments[batch]):
            self._event(batch, "batch.finished", None, {})
            self.batches[batch].update(state="finished", finished_at=NOW)

    def codebase_of(self, experiment: dict[str, Any]) -> str:
        """The codebase of an experiment: all have the same, unless `distinct_code` is set."""
        text = experiment["idea"]["text"]
        return tree_hash({"idea": text.encode()}) if self.distinct_code else "1" * 64

    def _list_batches(self, request: httpx2.Request) -> httpx2.Response:
        wanted = {name: request.url.params.get(name) for name in ("search", "state")}
        found = [
            self._batch(id_)
            for id_, body in self.batches.items()
            if all(value in (None, body.get(name)) for name, value in wanted.items())
        ]
        return page(found, request)

    def _event(self, batch: str, type_: str, experiment: str | None, data: Any) -> None:
        events = self.events[batch]
        events.append(
            {"id": len(events) + 1, "type": type_, "batch": batch, "experiment": experiment,
             "data": data, "created_at": NOW}
        )  # fmt: skip

    def _batch(self, id_: str) -> dict[str, Any]:
        if id_ not in self.batches:
            raise Refused(404, "not_found", f"no batch {id_}")
        body = self.batches[id_]
        states = [e["state"] for e in self.experiments[id_]]
        counts = {s: states.count(s) for s in set(states)}
        scored = [e for e in self.experiments[id_] if e["metric"] is not None]
        best = min(scored, key=lambda e: e["metric"], default=None)
        if body["finished_at"] is not None:
            body["baseline"]["pending"] = self.to_come
            self.to_come = max(0, self.to_come - 1)
        return {
            **body,
            "counts": {"total": len(states), **counts},
            "funnel": {"submitted": len(states), "scored": len(scored)},
            "best": best and {"experiment": best["id"], "metric": best["metric"]},
        }

    def _cancel_batch(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        self._batch(id_)
        self.batches[id_].update(state="cancelled", finished_at=NOW)
        self._event(id_, "batch.finished", None, {})
        return ok(self._batch(id_))

    def _list_calls(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        self._batch(id_)
        state = request.url.params.get("state")
        return page([c for c in self.calls if state in (None, c["state"])], request)

    def _report(self, request: httpx2.Request) -> httpx2.Response:
        query = request.url.params
        return ok({
            "environment": query.get("environment"), "batches": query.get_list("batch"),
            "search": query.get("search"), "since": query.get("since"), "data": self.report,
        })  # fmt: skip

    def _events(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        self._batch(id_)
        if self.finish_on_look and self.batches[id_]["finished_at"] is None:
            self.finish(id_)
        wants_stream = "text/event-stream" in request.headers.get("accept", "")
        if not wants_stream:
            after = int(request.url.params.get("after", 0))
            return page([e for e in self.events[id_] if e["id"] > after], request)
        if not self.streams:
            raise Refused(*self.no_streams)
        self.last_event_ids.append(request.headers.get("last-event-id"))
        after = 0 if self.forgetful else int(request.headers.get("last-event-id", 0))
        events = [e for e in self.events[id_] if e["id"] > after]
        if self.cut_streams:
            events = events[: self.cut_streams.pop(0)]
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, content=event_stream(events)
        )

    # -- experiments ------------------------------------------------------------------------

    def _experiment(self, id_: str) -> dict[str, Any]:
        for experiments in self.experiments.values():
            for experiment in experiments:
                if experiment["id"] == id_:
                    return experiment
        raise Refused(404, "not_found", f"no experiment {id_}")

    def _retry_experiment(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        """A retry is a batch of one; the outcome depends on the text, so it fails again."""
        failed = self._experiment(id_)
        if failed["state"] != "failed":
            raise Refused(409, "nothing_failed", f"{id_} succeeded; only failures are retried")
        if "retry" in failed:
            return ok(self._experiment(failed["retry"]))
        asked = BatchRequest(
            environment="fake", profile="tiny", ideas=[IdeaRequest(text=failed["idea"]["text"])]
        )
        (made,) = self.experiments[self._store_batch(asked)]
        made["idea"]["retries"], failed["retry"] = id_, made["id"]
        failed["retried_as"] = [made["id"]]
        return ok(made, 202)

    def _reproduce(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        """A reproduction is a batch of one, which says of the results what `agreement` is."""
        original = self._experiment(id_)
        if original["state"] != "succeeded":
            raise Refused(404, "no_result", f"{id_} is {original['state']} and has no result")
        if self.differing is not None and request.url.params.get("queue") != "true":
            raise Refused(409, "conditions_not_offered", self.differing)
        asked = BatchRequest(
            environment="fake", profile="tiny", ideas=[IdeaRequest(text=original["idea"]["text"])]
        )
        (made,) = self.experiments[self._store_batch(asked)]
        made["idea"]["reproduces"] = id_
        original["reproduced_as"] = [made["id"]]
        agrees = {"disagrees": False, "undecided": None}.get(self.agreement, True)
        seed = {"seed": 0, "before": 3.101, "again": 3.102, "equal": False, "failure": None}
        made["agreement"] = {
            "experiment": id_, "agreement": self.agreement, "agrees": agrees,
            "difference": 0.001, "p": 0.5, "seeds": [seed],
        }  # fmt: skip
        return ok(made, 202)

    def _bundle(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        self._experiment(id_)
        return httpx2.Response(200, content=b"a zip")

    def _known_measurement(self, id_: str) -> dict[str, Any]:
        for found in self.measurements:
            if found["id"] == id_:
                return found
        raise Refused(404, "not_found", f"no measurement {id_}")

    def _retry_measurement(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        failed = self._known_measurement(id_)
        if failed["state"] != "failed":
            raise Refused(409, "nothing_failed", f"{id_} succeeded; only failures are retried")
        again = {"id": f"{id_}_again", "replicate": failed["replicate"] + 1, "state": "queued"}
        self.measurements.append(failed | again | {"failure": None, "attempts": []})
        return ok(self.measurements[-1], 202)

    def _list_experiments(self, request: httpx2.Request) -> httpx2.Response:
        batch = request.url.params.get("batch")
        chosen = [self.experiments[batch]] if batch else list(self.experiments.values())
        listed = with_tag(request, [e for experiments in chosen for e in experiments])
        return page(map(self._provisional, listed) if self.pending else listed, request)

    def _provisional(self, experiment: dict[str, Any]) -> dict[str, Any]:
        """An experiment beside a baseline that is not whole."""
        compared = experiment["comparison"]
        if compared is None:
            return experiment
        changed = {"verdict": "provisional", "effect": 2 * compared["effect"]}
        return {**experiment, "comparison": {**compared, **changed}}

    def _diff(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        if self._experiment(id_)["codebase"] is None:
            raise Refused(404, "not_implemented_yet")
        return httpx2.Response(200, text="--- a/train.py\n+++ b/train.py\n-rate\n+\x1b[31mrate\n")

    def _logs(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        self._experiment(id_)
        return self._log(request, "step 1 ü\nstep 2\n".encode())

    def _measurement_log(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        lines = [f"step {number}" for number in range(30)]
        return self._log(request, "\n".join([*lines, "ValueError: \x1b[31mno"]).encode())

    def _log(self, request: httpx2.Request, log: bytes) -> httpx2.Response:
        offset = int(request.url.params.get("offset", 0))
        return httpx2.Response(
            200, content=log[offset : offset + 8], headers={"Next-Offset": str(
                min(len(log), offset + 8))}
        )  # fmt: skip

    def _curves(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        self._experiment(id_)
        return ok({"object": "list", "data": [
            {"seq": 0, "step": 0, "values": {"train/loss": 3.0}},
            {"seq": 1, "step": 10, "values": {"train/loss": "NaN"}},
        ]})  # fmt: skip

    def _result(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        experiment = self._experiment(id_)
        if experiment["metric"] is None:
            raise Refused(404, "no_result", "there is no result")
        return ok({
            "experiment": id_, "metric_name": "loss", "direction": "minimize",
            "metric": experiment["metric"], "reward": experiment["reward"],
            "comparison": experiment["comparison"], "artifacts": [],
            "measurements": [self._measurement(experiment, seed) for seed in range(2)],
        })  # fmt: skip

    def _measurement(self, experiment: dict[str, Any], seed: int) -> dict[str, Any]:
        return {
            "id": f"mea_{seed}", "kind": "score", "codebase": experiment["codebase"],
            "environment": "fake@abc", "profile": "tiny", "hardware_class": "cpu-fake",
            "seed": seed, "replicate": 0, "state": "succeeded", "failure": None,
            "metric": experiment["metric"], "metrics": {"loss": experiment["metric"]},
            "provenance": {}, "attempts": [], "created_at": NOW, "finished_at": NOW,
        }  # fmt: skip

    # -- environments -----------------------------------------------------------------------

    def environment(self) -> dict[str, Any]:
        """The only environment."""
        return {
            "id": self.environment_id, "name": "fake", "title": "Fake",
            "problem": "Lower the loss.", "metric": "loss", "unit": "nats",
            "direction": "minimize", "reward": "reciprocal",
            "protected": ["predict.py"], "codebase": "0" * 64, "knobs": KNOBS, "recipes": RECIPES,
            "profiles": [{"name": "tiny", "description": "small", "cpus": 1, "gpus": 0,
                          "memory_gb": 1.0, "budget": {"seconds": 5, "tokens": None},
                          "baseline_seeds": len(BASELINE), "in_words": "5 s of wall clock",
                          "notes": "Edit train.py."}],
            "rules": "- Keep it short.",
            "splits": self.splits,
        }  # fmt: skip

    def _get_environment(self, request: httpx2.Request, name: str) -> httpx2.Response:
        if name.partition("@")[0] != "fake":
            raise Refused(404, "not_found", f"no environment {name}")
        return ok(self.environment())

    def _fit(self, number: int) -> dict[str, Any]:
        return {
            "object": "verdict_fit", "id": "fit_x" if number else None, "number": number,
            "created_at": NOW if number else None, "codebases": 9 * number, "df": 4.0,
            "variance": 1.0, "slope": 0.25, "slope_seeds": 4.0, "effect": 1.0,
        }  # fmt: skip

    def _baseline(self) -> dict[str, Any]:
        self.pending = max(0, self.pending - 1)
        values = BASELINE[: len(BASELINE) - self.pending]
        return {
            "environment": "fake@abc", "profile": "tiny", "hardware_class": "cpu-fake",
            "metric": "loss", "spread": 0.0158,
            "mean": sum(values) / len(values) if values else None,
            "seeds": list(range(len(values))), "values": values, "pending": self.pending,
            "pending_seeds": list(range(len(values), len(BASELINE))),
            "failed": len(self.failures), "failures": self.failures,
        } | self.baseline  # fmt: skip

    def _calibrate(self, request: httpx2.Request) -> httpx2.Response:
        self.calibrated += 1
        asked = json.loads(request.content)
        self.asked_seeds.append(asked.get("seeds"))
        if asked.get("again"):
            self.failures = []
        return ok(self._baseline(), 202)

    # -- searches ---------------------------------------------------------------------------

    def _create_search(self, request: httpx2.Request) -> httpx2.Response:
        asked = SearchRequest.model_validate_json(request.content)
        id_ = f"srch_{len(self.searches):026d}"
        self.epochs[id_] = []
        self.searches[id_] = {
            **asked.model_dump(mode="json"), "environment": self.environment_id,
            "id": id_, "owner": "local", "state": "running", "epochs_finished": 0, "best": [],
            "pauses": [], "created_at": NOW, "finished_at": None,
        }  # fmt: skip
        return ok(self.searches[id_], 201)

    def _search(self, id_: str) -> dict[str, Any]:
        if id_ not in self.searches:
            raise Refused(404, "not_found", f"no search {id_}")
        best: list[dict[str, Any]] = []
        so_far: float | None = None
        for epoch in self.epochs[id_]:
            if epoch["batch"] is None or self.batches[epoch["batch"]]["finished_at"] is None:
                continue
            metrics = [e["metric"] for e in self.experiments[epoch["batch"]]]
            scored = [m for m in metrics if m is not None]
            so_far = min([*scored, *([so_far] if so_far is not None else [])], default=None)
            best.append(
                {"epoch": epoch["number"], "batch": epoch["batch"], "experiment": None,
                 "metric": min(scored, default=None), "best_so_far": so_far,
                 "scored": len(scored), "total": len(metrics)}
            )  # fmt: skip
        return {**self.searches[id_], "best": best, "epochs_finished": len(best)}

    def _close_search(self, request: httpx2.Request, id_: str, verb: str) -> httpx2.Response:
        asked = FinishRequest.model_validate_json(request.content or b"{}").epochs
        state = {"cancel": "cancelled", "finish": "finished"}[verb]
        if asked in (None, self._search(id_)["epochs"]):
            self.searches[id_].update(state=state, finished_at=NOW)
        return ok(self._search(id_))

    def pause(self, id_: str) -> dict[str, Any]:
        """A person pauses a search."""
        self.searches[id_]["pauses"].append(
            {"reason": "person", "message": "A person paused it.", "paused_at": NOW,
             "resumed_at": None}
        )  # fmt: skip
        return self._search(id_)

    def _extend_search(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        asked = ExtendRequest.model_validate_json(request.content)
        if self._search(id_)["state"] == "cancelled":
            raise Refused(409, "search_ended", f"{id_} was cancelled")
        self.extend(id_, asked.epochs or self.searches[id_]["epochs"])
        return ok(self._search(id_))

    def extend(self, id_: str, epochs: int) -> None:
        """Raise the number of a search's epochs."""
        self.searches[id_].update(epochs=epochs, state="running", finished_at=None)

    def _pause_after(self, request: httpx2.Request, id_: str, number: str) -> httpx2.Response:
        asked = PauseRequest.model_validate_json(request.content).model_dump(mode="json")
        pauses = self.searches[id_]["pauses"]
        if int(number) not in [pause.get("epoch") for pause in pauses]:
            pauses.append({"epoch": int(number), **asked, "paused_at": NOW, "resumed_at": None})
        return ok(self._search(id_))

    def _resume_search(self, request: httpx2.Request, id_: str) -> httpx2.Response:
        for pause in self.searches[id_]["pauses"]:
            pause["resumed_at"] = NOW
        return ok(self._search(id_))

    def _list_ideator_calls(self, request: httpx2.Request, search: str) -> httpx2.Response:
        query = request.url.params
        found = [
            call
            for call in self.ideator_calls.values()
            if call["search"] == search
            and query.get("epoch", str(call["epoch"])) == str(call["epoch"])
            and (call["text"] is not None or "answered" not in query)
            and (call["unread"] or "unread" not in query)
        ]
        return page(found, request)

    def _begin_call(self, request: httpx2.Request, search: str, id_: str) -> httpx2.Response:
        asked = IdeatorCallRequest.model_validate_json(request.content).model_dump(mode="json")
        if self.call_refusals:
            return problem(409, self.call_refusals.pop(0))
        unknown = dict.fromkeys(IdeatorCallBody.model_fields)
        tokens = {name: 0 for name in unknown if name.endswith("_tokens")}
        known = {"id": id_, "search": search, "model": self.searches[search]["ideator"]}
        begun = {"object": "ideator_call", "state": "calling", "started_at": NOW}
        self.ideator_calls[id_] = unknown | asked | tokens | {"is_estimate": False} | known | begun
        return ok(self.ideator_calls[id_], 201)

    def _end_call(self, request: httpx2.Request, search: str, id_: str) -> httpx2.Response:
        ended = IdeatorCallEndRequest.model_validate_json(request.content).model_dump(mode="json")
        self.ideator_calls[id_] |= (ended.pop("answer") or {}) | ended | {"finished_at": NOW}
        return ok(self.ideator_calls[id_])

    def _put_decision(self, request: httpx2.Request, id_: str, number: str) -> httpx2.Response:
        asked = DecisionRequest.model_validate_json(request.content).model_dump(mode="json")
        epochs, n = self.epochs[id_], int(number)
        if n < len(epochs):
            if epochs[n]["decision"] != asked:
                raise Refused(409, "epoch_exists", "it was decided otherwise")
            return ok(epochs[n])
        self._add_epoch(id_, n, state="decided", decision=asked)
        return ok(epochs[n], 201)

    def _put_epoch(self, request: httpx2.Request, id_: str, number: str) -> httpx2.Response:
        asked = EpochRequest.model_validate_json(request.content).model_dump(mode="json")
        epochs, n = self.epochs[id_], int(number)
        if n < len(epochs) and epochs[n]["ideas"]:
            if epochs[n]["ideas"] != asked["ideas"]:
                raise Refused(409, "epoch_exists", "other ideas are stored")
            return ok(epochs[n])
        if n >= len(epochs):
            self._add_epoch(id_, n)
        epochs[n].update(state="proposed", ideas=asked["ideas"])
        return ok(epochs[n], 201)

    def _add_epoch(self, id_: str, number: int, **more: Any) -> None:
        if number != len(self.epochs[id_]) or number >= self.searches[id_]["epochs"]:
            raise Refused(409, "epoch_out_of_order", f"{number} is not the next epoch")
        self.epochs[id_].append(
            {"search": id_, "number": number, "batch": None, "ideas": [], "decision": None,
             "created_at": NOW} | more
        )  # fmt: skip

    def _submit_epoch(self, request: httpx2.Request, id_: str, number: str) -> httpx2.Response:
        epoch, search = self.epochs[id_][int(number)], self.searches[id_]
        if not epoch["ideas"]:
            raise Refused(409, "conflict", f"epoch {number} has no ideas yet")
        if epoch["batch"] is None:
            options = BatchOptions.model_validate_json(request.content or b"{}")
            self.batch_options.append(options)
            epoch["batch"] = self._store_batch(
                BatchRequest(
                    environment="fake", profile=search["profile"], search=id_, epoch=int(number),
                    ideas=[IdeaRequest.model_validate(i) for i in epoch["ideas"]],
                    executor=search["executor"], options=options,
                )
            )  # fmt: skip
            epoch["state"] = "submitted"
        return ok(self._batch(epoch["batch"]), 202)


CONDITIONS = [
    {"id": id_, "hardware_class": "cpu-fake", "facts": {}, "workers": [], "created_at": NOW}
    for id_ in ("cnd_0123456789abcdef", "cnd_01ff456789abcdef")
]
#: Nothing waits; tests put into it what does.
EMPTY_STAGE = {
    "unit": "places", "total": 512, "under_way": 0, "batches": [], "next": [],
    "owners": [
        {"owner": name, "owners": 0, "weight": 1.0, "waiting": 0, "under_way": 0, "has": None,
         "recent": None, "due": None}
        for name in ("local", None)
    ],
}  # fmt: skip
WORKER = {
    "id": "wrk_1", "name": "here", "state": "active", "cpus": 2, "gpus": 0,
    "memory_bytes": 1 << 30, "hardware_class": "cpu-fake", "sandbox": "subprocess",
    "isolated": False, "guarantees": {}, "running": [], "last_seen_at": NOW,
}  # fmt: skip
