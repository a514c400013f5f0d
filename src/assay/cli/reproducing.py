"""Show whether a reproduction agrees, for `assay experiment reproduce` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.contracts.batch import AgreementBody, SeedAgreementBody

#: What is said of each agreement, as the API names them.
_SAID = {
    "to the digit": "agrees to the digit",
    "within noise": "agrees within noise",
    "disagrees": "disagrees",
    "undecided": "is undecided: seeds were not measured, and not for the code's sake",
}


def describe_agreement(body: AgreementBody) -> str:
    """Say in one line whether a reproduction agrees with what it repeats."""
    from assay.analysis.text import format_number

    line = f"{_SAID[body.agreement]} with {body.experiment}"
    if body.agreement == "undecided":
        line = f"beside {body.experiment}, it {_SAID[body.agreement]}"
    elif body.difference:
        line += f": larger by {format_number(body.difference)}"
        line += "" if body.p is None else f", p {format_number(body.p)}"
    return line


def describe_seed(seed: SeedAgreementBody) -> str:
    """Say what came of one seed."""
    if seed.failure is not None:
        return f"failed: {seed.failure}"
    if seed.again is None:
        return "not measured"
    return "equal" if seed.equal else "differs"
