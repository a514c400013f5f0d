"""Errors of the client.

ClientError                     an AssayError, with `.code`, `.problem` and `.request_id`
├── APIConnectionError          no answer: refused, reset, name not found
│   └── APITimeoutError         no answer in time
├── APIStatusError              the service answered with an error; `.status`, `.problem`
│   ├── BadRequest              400
│   ├── Unauthorized            401, 403
│   ├── NotFound                404
│   ├── Conflict                409
│   ├── Invalid                 422; `.problem.errors` says which fields
│   ├── RateLimited             429
│   └── ServerFault             5xx
└── WaitTimeout                 `wait` gave up; the work itself goes on
"""

from __future__ import annotations

import httpx2
from pydantic import ValidationError

from assay.contracts.base import Problem
from assay.domain.errors import AssayError


class ClientError(AssayError):
    """A call to the service failed."""

    code = "client_error"

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        problem: Problem | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message, code=code)
        self.problem = problem
        self.request_id = request_id


class APIConnectionError(ClientError):
    """The service did not answer."""

    code = "connect_error"


class APITimeoutError(APIConnectionError):
    """The service did not answer in time."""

    code = "timeout"


class APIStatusError(ClientError):
    """The service answered with an error."""

    code = "http_error"

    def __init__(self, message: str, *, status: int, problem: Problem, request_id: str) -> None:
        super().__init__(message, code=problem.code, problem=problem, request_id=request_id)
        self.status = status
        self.problem: Problem = problem


class BadRequest(APIStatusError):
    """The request is malformed (400)."""


class Unauthorized(APIStatusError):
    """The API key is missing, wrong, or not allowed to do this (401, 403)."""


class NotFound(APIStatusError):
    """There is no such thing (404)."""


class Conflict(APIStatusError):
    """The current state does not allow this (409)."""


class Invalid(APIStatusError):
    """Fields of the request are wrong (422)."""


class RateLimited(APIStatusError):
    """Too many requests (429)."""


class ServerFault(APIStatusError):
    """The service failed (5xx)."""


class WaitTimeout(ClientError, TimeoutError):
    """Waiting took longer than allowed. Nothing was cancelled."""

    code = "timeout"


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    422: Invalid,
    429: RateLimited,
}


def status_error(response: httpx2.Response) -> APIStatusError:
    """The error for a response that has been read and whose status is not a success."""
    problem = parse_problem(response)
    status = response.status_code
    kind = _BY_STATUS.get(status, ServerFault if status >= 500 else APIStatusError)
    request_id = problem.request_id or response.headers.get("x-request-id", "")
    return kind(_describe(problem), status=status, problem=problem, request_id=request_id)


def parse_problem(response: httpx2.Response) -> Problem:
    """The problem in a response; one is made up where a proxy answered in its own words."""
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        return Problem(
            title=response.reason_phrase or "Error",
            status=response.status_code,
            detail=response.text.strip()[:300],
            code=f"http_{response.status_code}",
        )


def _describe(problem: Problem) -> str:
    text = problem.detail or problem.title
    more = [f"{e.pointer}: {e.message}" for e in problem.errors if e.message not in text]
    return "; ".join([text, *more])
