"""`assay model check` against servers that speak the providers' wire formats."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from assay.cli.app import build_app
from tests.llm.wires import ANTHROPIC, OPENAI, WIRES, Wire
from tests.support.provider import anthropic, openai
from tests.support.provider.reply import Reply
from tests.support.provider.server import ProviderServer, Request

EDIT = "A plan.\n\nfit.py\n<<<<<<< SEARCH\nrate = 0.1\n=======\nrate = 0.05\n>>>>>>> REPLACE\n"
IDEA = "[Experiment] Go slower.\n[Code Changes] Set `rate` to 0.01.\n[End]"


def is_ideator(request: Request) -> bool:
    asked = request.texts("user")[-1]
    return "Propose 1 new ideas" in asked


class Answers:
    """A model that answers as it should, but for what a test changes."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.idea, self.edit = IDEA, EDIT
        self.repaired = IDEA
        self.refused: dict[str, Reply] = {}
        """By field of the request."""
        self.streams = True

    def __call__(self, request: Request) -> Reply:
        for field, reply in self.refused.items():
            if field in request.body:
                return reply
        text = self.idea if is_ideator(request) else self.edit
        if "could not be read as ideas" in request.texts("user")[-1]:
            text = self.repaired
        reply = self.wire.answer(text)
        return reply if self.streams else reply.plain()


def name_of(wire: Wire, server: ProviderServer, model: str = "mine") -> str:
    address = server.url if wire is ANTHROPIC else server.openai_url
    return f"{wire.name}:{model}@{address}"


def check(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build_app(arguments), ["model", "check", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def findings(answers: Answers, *flags: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and state and detail by check."""
    with ProviderServer(answers) as server:
        code, out, _ = check(name_of(answers.wire, server), "--json", *flags)
    found = json.loads(out)["data"]["findings"]
    return code, {each["check"]: (each["state"], each["detail"]) for each in found}


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_model_that_can_do_all(wire: Wire) -> None:
    code, found = findings(Answers(wire))
    assert code == 0
    states = {check: state for check, (state, _) in found.items()}
    assert states == {
        "answers": "yes",
        "as executor": "yes",
        "as ideator": "yes",
        "streaming": "yes",
        "usage": "yes",
        "prompt cache": "note",
        "temperature": "yes",
        "effort": "yes",
        "context window": "note",
        "price": "note",
    }
    assert "12 tokens read, 5 written" in found["usage"][1]
    assert "at most 64,000" in found["context window"][1]


def test_it_is_printed_for_people() -> None:
    answers = Answers(OPENAI)
    with ProviderServer(answers) as server:
        code, out, err = check(name_of(OPENAI, server))
    assert code == 0
    assert "its edit applies" in out
    assert "its idea can be read" in out
    assert err == ""


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_answers_that_cannot_be_used_fail_the_check(wire: Wire) -> None:
    answers = Answers(wire)
    answers.idea, answers.edit = "I have none.", "I would lower the rate."
    answers.repaired = "Still none."
    code, found = findings(answers)
    assert code == 1
    assert found["as executor"][0] == found["as ideator"][0] == "no"
    assert "does not apply" in found["as executor"][1]
    assert "no idea could be read" in found["as ideator"][1]


def test_an_idea_that_has_to_be_repaired_is_a_note() -> None:
    answers = Answers(OPENAI)
    answers.idea = "I would go slower."
    code, found = findings(answers)
    assert code == 0
    assert found["as ideator"][0] == "note"


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_options_that_a_model_refuses_are_notes(wire: Wire) -> None:
    answers = Answers(wire)
    effort = "thinking" if wire is ANTHROPIC else "reasoning_effort"
    answers.refused = {"temperature": wire.failure(400), effort: wire.failure(400)}
    code, found = findings(answers)
    assert code == 0
    assert found["temperature"][0] == found["effort"][0] == "note"
    assert "answered 400" in found["effort"][1]


def test_a_model_that_takes_no_temperature_is_known_by_name() -> None:
    with ProviderServer(Answers(ANTHROPIC)) as server:
        _, out, _ = check(name_of(ANTHROPIC, server, "claude-opus-5"), "--json")
        sent = [request.body for request in server.requests]
    found = {each["check"]: each for each in json.loads(out)["data"]["findings"]}
    assert "takes none" in found["temperature"]["detail"]
    assert not [body for body in sent if "temperature" in body]


def test_what_a_small_server_leaves_out_is_noted() -> None:
    def answer(request: Request) -> Reply:
        reply = openai.completion(IDEA if is_ideator(request) else EDIT).plain()
        del reply.body["usage"]
        return reply

    with ProviderServer(answer) as server:
        code, out, _ = check(name_of(OPENAI, server), "--json")
    found = {each["check"]: each["state"] for each in json.loads(out)["data"]["findings"]}
    assert code == 0
    assert (found["streaming"], found["usage"]) == ("note", "note")


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_tokens_from_the_cache_are_reported(wire: Wire) -> None:
    def answer(request: Request) -> Reply:
        return wire.answer(IDEA) if is_ideator(request) else wire.cached

    with ProviderServer(answer) as server:
        _, out, _ = check(name_of(wire, server), "--json")
    found = {each["check"]: each for each in json.loads(out)["data"]["findings"]}
    assert found["prompt cache"]["state"] == "yes"
    assert "900 tokens" in found["prompt cache"]["detail"]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize(
    ("status", "said"), [(401, "check the key in"), (404, "answered 404"), (503, "answered 503")]
)
def test_a_model_that_does_not_answer_is_asked_once(wire: Wire, status: int, said: str) -> None:
    with ProviderServer(lambda _: wire.failure(status)) as server:
        code, out, err = check(name_of(wire, server), "--json")
        assert len(server.requests) == 1
    assert code == 1
    first = json.loads(out)["data"]["findings"][0]
    assert (first["check"], first["state"]) == ("answers", "no")
    assert said in first["detail"]
    assert "cannot use" in err


def test_a_server_that_never_answers_is_not_waited_for() -> None:
    with ProviderServer(Answers(OPENAI)) as server:
        server.hold()
        code, out, _ = check(name_of(OPENAI, server), "--timeout", "1", "--json")
        server.release()
    assert code == 1
    assert json.loads(out)["data"]["findings"][0]["state"] == "no"


def test_nobody_there_is_said() -> None:
    with ProviderServer(Answers(OPENAI)) as server:
        name = name_of(OPENAI, server)
    code, out, _ = check(name, "--json")
    assert code == 1
    assert "cannot be reached" in json.loads(out)["data"]["findings"][0]["detail"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["openai:gpt-5"], 1, "OPENAI_API_KEY"),
        (["anthropic:claude-opus-5"], 1, "ANTHROPIC_API_KEY"),
        (["nobody:x"], 2, "names no known provider"),
        (["offline"], 2, "is no model"),
        (["openai:gpt-4o@http://127.0.0.1:1/v1", "--context-tokens", "5"], 2, "too little"),
    ],
)
def test_what_cannot_be_asked_is_said(
    arguments: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (
        "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL",
    ):  # fmt: skip
        monkeypatch.delenv(variable, raising=False)
    got, _, err = check(*arguments)
    assert got == code
    assert said in err


def test_a_temperature_and_an_effort_are_asked_for_apart() -> None:
    with ProviderServer(Answers(ANTHROPIC)) as server:
        check(name_of(ANTHROPIC, server))
        bodies = [request.body for request in server.requests]
    assert [("temperature" in b, "thinking" in b) for b in bodies] == [
        (False, False), (True, False), (False, True), (False, False),
    ]  # fmt: skip
    assert server.requests[0].path == anthropic.PATH
