"""A model, scripted, that changes the step of the program it is asked to improve."""

from __future__ import annotations

import re

from tests.support.provider.server import ProviderServer, Request

#: What the step becomes, one request after another. The second one crashes.
STEPS = ("0.3", "undefined", "0.15", "0.2", "0.1", "0.25", "0.12", "0.18", "0.22", "0.08")
_STEP = re.compile(r"^STEP = .*$", re.MULTILINE)
_CURRENT = "# Current Program\n"


class MutatingModel(ProviderServer):
    """Answers with the next step: as an edit where edits are asked for, else the whole program."""

    def __init__(self) -> None:
        super().__init__(self._mutate)

    def _mutate(self, request: Request) -> str:
        asked = "\n".join(request.texts())
        step = STEPS[(len(self.requests) - 1) % len(STEPS)]
        wants_edit = "SEARCH/REPLACE" in asked
        program = asked.rpartition(_CURRENT)[2] if wants_edit else asked.split("```")[1]
        now = _STEP.search(program)
        assert now is not None, asked
        if wants_edit:
            edit = f"<<<<<<< SEARCH\n{now[0]}\n=======\nSTEP = {step}\n>>>>>>> REPLACE"
            return f"Another step.\n\n{edit}\n"
        return f"Another step.\n\n```\n{_STEP.sub(f'STEP = {step}', program).strip()}\n```\n"
