"""Settings of shares: a weight by which nothing can be divided is refused at the start."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from services.implementer.settings import ImplementerSettings
from services.scheduler.settings import SchedulerSettings

BOTH = pytest.mark.parametrize(
    ("settings", "variable"),
    [
        (SchedulerSettings, "ASSAY_SCHEDULER_SHARES"),
        (ImplementerSettings, "ASSAY_IMPLEMENTER_SHARES"),
    ],
)


@BOTH
@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan")])
def test_a_weight_is_a_finite_number_above_zero(
    monkeypatch: pytest.MonkeyPatch,
    settings: type[SchedulerSettings] | type[ImplementerSettings],
    variable: str,
    weight: float,
) -> None:
    monkeypatch.setenv(variable, json.dumps({"alice": weight}))
    with pytest.raises(ValidationError, match=r"shares\.alice"):
        settings()


@BOTH
def test_owners_have_the_weights_that_are_set(
    monkeypatch: pytest.MonkeyPatch,
    settings: type[SchedulerSettings] | type[ImplementerSettings],
    variable: str,
) -> None:
    monkeypatch.setenv(variable, '{"alice": 2.5}')
    assert settings().shares == {"alice": 2.5}
