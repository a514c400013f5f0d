"""Held-out data cannot leave through the digits of results: exact numbers are stored and judged,
rounded ones are shown, and what they show is counted."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from assay.analysis import worn_note
from assay.domain.failure_codes import MOST_DECLARED, REJECTIONS, FailureCode
from assay.domain.metrics import Direction
from assay.domain.rounding import OUTCOME_BITS, shown
from assay.domain.verdicts import Measured, Verdict, judge
from assay.environments.catalog import Catalog
from assay.storage import disclosure, schema
from tests.implementer.scored import HEADERS, Service, open_service, score
from tests.support.environment import MANIFEST, write_environment

#: Two results that differ by less than is shown, in every number an evaluation gives.
ONE = {
    "score": 12.50123, "score/se": 0.21234, "score/part": 0.71234,
    "confirmed_score": 11.40123, "other": 0.123412345,
}  # fmt: skip
TWO = {
    "score": 12.50456, "score/se": 0.21432, "score/part": 0.70654,
    "confirmed_score": 11.40345, "other": 0.123411111,
}  # fmt: skip
FACTS_ONE = {"evaluation_seconds": 2.6123, "evaluation_cpu_seconds": 1.7123, "rescored": 12.50321}
FACTS_TWO = {"evaluation_seconds": 2.9456, "evaluation_cpu_seconds": 2.2456, "rescored": 12.50245}
RESCORE_ONE = {"metrics": {**ONE, "score": 12.50321, "score/se": 0.19876}, "seconds": 2.6123}
RESCORE_TWO = {"metrics": {**TWO, "score": 12.50245, "score/se": 0.20321}, "seconds": 2.9456}
#: Numbers of a comparison that are named as in `Judgement`.
SHOWN = ("effect", "standard_error", "sigmas", "low", "high", "p", "posterior", "p_improves")
_IDS = re.compile(r"\b(?:att|bat|call|exp|idea|impl|mea|msg|req|srch|whk|wrk)_[0-9a-z]{10,}")
_TIMES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")


def bodies(service: Service) -> dict[str, str]:
    """The answers of all GET endpoints, without ids and times."""
    paths = service.api.get("/openapi.json").json()["paths"]
    asked = {}
    for template, operations in paths.items():
        if "get" not in operations or not template.startswith("/v1/"):
            continue
        path = template.format(**service.found | {"name": name_in(template)})
        answer = service.api.get(path, params=params_of(operations["get"], service))
        assert answer.status_code == 200 or path.endswith("/artifacts/none.zip"), answer.text
        text = unzipped(answer.content) if template.endswith("/bundle") else answer.text
        asked[template] = _TIMES.sub("TIME", _IDS.sub("ID", text))
    return asked


def unzipped(data: bytes) -> str:
    """Every file of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return "".join(f"{name}: {archive.read(name).decode()}" for name in archive.namelist())


def name_in(template: str) -> str:
    return "none.zip" if "artifacts" in template else "count"


def params_of(operation: dict[str, Any], service: Service) -> dict[str, str]:
    """The query parameters that an endpoint needs."""
    experiment = service.found["experiment_id"]
    known = {"profile": "tiny", "a": experiment, "b": "baseline"}
    needed = [p for p in operation.get("parameters", []) if p["in"] == "query" and p["required"]]
    return {p["name"]: known[p["name"]] for p in needed}


def test_results_that_differ_by_less_than_is_shown_look_the_same_everywhere(
    tmp_path: Path, catalog: Catalog
) -> None:
    seen = []
    for name, metrics, facts, rescore in (
        ("one", ONE, FACTS_ONE, RESCORE_ONE),
        ("two", TWO, FACTS_TWO, RESCORE_TWO),
    ):
        (tmp_path / name).mkdir()
        service = open_service(tmp_path / name, catalog)
        score(service, metrics, facts, rescore)
        seen.append(bodies(service))
        with service.context.db.read() as session:
            stored = session.get_one(schema.Result, service.found["measurement_id"])
            assert stored.metrics == metrics, "exact in the store"
            assert stored.metric == metrics["score"]
            assert stored.provenance["rescored"] == facts["rescored"]
            again = session.get_one(schema.Rescore, stored.measurement_id)
            found = {"metrics": again.metrics, "seconds": again.seconds}
            assert found == rescore, "exact, too"
            assert again.metric == again.metrics["score"]
        service.context.db.dispose()
    one, two = seen
    assert len(one) > 20
    assert one.keys() == two.keys()
    assert [template for template in one if one[template] != two[template]] == []
    everything = json.dumps(one)
    assert "12.5" in everything
    numbers = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", everything)
    assert {n for n in numbers if len(n.replace(".", "").strip("0")) > 4} == set()


def test_views_show_what_the_rules_of_rounding_say(service: Service) -> None:
    warm = {"train_warm_up_seconds": 20.4}
    score(service, ONE, FACTS_ONE | {"peak_memory_bytes": (3 << 20) + 5} | warm)
    get = service.api.get
    measurement = get(f"/v1/measurements/{service.found['measurement_id']}").json()
    assert measurement["metric"] == 12.5
    assert measurement["metrics"] == {
        "score": 12.5, "score/se": 0.21, "score/part": 0.71, "confirmed_score": 11.4,
        "other": 0.1234,
    }  # fmt: skip
    assert measurement["provenance"]["evaluation_seconds"] == 3.0
    assert measurement["provenance"]["peak_memory_bytes"] == 3 << 20
    assert measurement["provenance"]["rescored"] == 12.5
    experiment = get(f"/v1/experiments/{service.experiments[0]}").json()
    assert experiment["warm_up_seconds"] == 40.0  # of both seeds, as `seconds` are
    assert experiment["metric"] == experiment["reward"] == 12.5
    assert experiment["metrics"] == {
        "score/se": 0.21, "score/part": 0.71, "confirmed_score": 11.4, "other": 0.1234,
    }  # fmt: skip
    environment = experiment["environment"].partition("@")[0]
    assert (environment, experiment["profile"]) == ("count", "tiny")
    assert experiment["seconds"] == 8.0
    compared = experiment["comparison"]
    assert [compared[f"baseline_{name}"] for name in ("mean", "spread", "n")] == [10.5, 0.5, 3]
    assert (compared["n"], compared["verdict"]) == (2, "better")
    judged = judge(Direction.MAXIMIZE, measured([12.5, 12.5]), measured([10.0, 10.5, 11.0]))
    assert {name: compared[name] for name in SHOWN} == {
        name: shown(getattr(judged, name)) for name in SHOWN
    }
    assert compared["degrees_of_freedom"] == shown(judged.df or 0)
    result = get(f"/v1/experiments/{service.experiments[0]}/result").json()
    assert (result["metric"], result["reward"]) == (12.5, 12.5)
    assert result["measurements"][0]["metrics"] == measurement["metrics"]
    batch = get(f"/v1/batches/{service.found['batch_id']}").json()
    assert batch["best"]["metric"] == 12.5
    counts = batch["measurements"]
    assert (counts["total"], counts["succeeded"], counts["queued"]) == (2, 2, 0)
    assert (batch["baseline"]["mean"], batch["baseline"]["spread"]) == (10.5, 0.5)
    search = get(f"/v1/searches/{service.found['search_id']}").json()
    assert [entry["metric"] for entry in search["best"]] == []  # its epoch has not finished
    (row,) = get("/v1/reports/execution").json()["data"]
    assert (row["metric"]["average"], row["metric"]["best"]) == (12.5, 12.5)
    baseline = get("/v1/environments/count/baseline", params={"profile": "tiny"}).json()
    assert baseline["values"] == [10.0, 10.5, 11.0]


def test_a_second_evaluation_is_shown_as_coarsely_as_the_first(service: Service) -> None:
    score(service, ONE, {}, RESCORE_ONE)
    get = service.api.get
    measurement = get(f"/v1/measurements/{service.found['measurement_id']}").json()
    assert measurement["rescore"] == {
        "metric": 12.5,
        "metrics": {
            "score": 12.5, "score/se": 0.2, "score/part": 0.71, "confirmed_score": 11.4,
            "other": 0.1234,
        },
        "seconds": 3.0,
    }  # fmt: skip
    assert measurement["metric"] == 12.5
    assert measurement["seconds"] == 4.0
    result = get(f"/v1/experiments/{service.experiments[0]}/result").json()
    assert [each["rescore"] for each in result["measurements"]] == [measurement["rescore"]] * 2


def test_a_result_of_an_older_worker_shows_its_second_score_where_it_did(
    service: Service,
) -> None:
    score(service, ONE, FACTS_ONE)
    measurement = service.api.get(f"/v1/measurements/{service.found['measurement_id']}").json()
    assert measurement["rescore"] is None
    assert measurement["provenance"]["rescored"] == 12.5


def test_the_digits_of_a_second_evaluation_count(service: Service) -> None:
    first, second = service.implement(service.experiments[0], "a = 1\n")
    service.finish(first, state="succeeded", metrics=ONE)
    once = splits(service)
    service.finish(second, state="succeeded", metrics=ONE, rescore=RESCORE_ONE)
    twice = splits(service)
    more = {name: twice[name] - 2 * once[name] for name in once}
    assert 50 < more["search"] < 250
    assert more["sealed"] == 0


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"rescore": {"metrics": {"other": 1.0}, "seconds": 1.0}}, "/rescore/metrics"),
        ({"rescore": {"metrics": {"score": "NaN"}, "seconds": 1.0}}, "/rescore/metrics"),
        ({"rescore": {"metrics": {"score": 1.0}, "seconds": -1.0}}, "/rescore/seconds"),
        ({"rescore": RESCORE_ONE, "state": "cancelled"}, "rescore: only of a success"),
    ],
)
def test_a_second_evaluation_without_a_score_or_a_success_is_refused(
    service: Service, body: dict[str, Any], told: str
) -> None:
    first, _ = service.implement(service.experiments[0], "a = 1\n")
    answer = service.report(first, **{"state": "succeeded", "metrics": ONE} | body)
    assert answer.status_code == 422, answer.text
    assert told in answer.text
    assert service.api.get(f"/v1/measurements/{first}").json()["state"] == "running"


@pytest.mark.parametrize(("excess", "verdict"), [(0.0004, "better"), (-0.0004, "undecided")])
def test_a_verdict_is_that_of_the_exact_numbers(
    service: Service, excess: float, verdict: str
) -> None:
    """Both are shown alike, on either side of the threshold."""
    edge = threshold([10.00001, 10.50001, 11.00001])
    score(service, {"score": edge + excess, "score/se": 0.1}, {})
    experiment = service.api.get(f"/v1/experiments/{service.experiments[0]}").json()
    assert experiment["metric"] == shown(edge, 0.1)
    assert experiment["comparison"]["verdict"] == verdict


def threshold(baseline: list[float]) -> float:
    """The lowest score, on two seeds, that is called better."""
    low, high = 10.5, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        found = judge(Direction.MAXIMIZE, measured([middle] * 2), measured(baseline)).verdict
        low, high = (low, middle) if found is Verdict.BETTER else (middle, high)
    return high


def measured(values: list[float]) -> Measured:
    found = Measured.of(dict(enumerate(values)))
    assert found is not None
    return found


def test_equal_numbers_share_the_first_place(service: Service) -> None:
    """Otherwise the choice of the best would compare digits that are not shown."""
    score(service, ONE, {})
    for measurement in service.implement(service.experiments[1], "a = 2\n"):
        service.finish(measurement, state="succeeded", metrics=TWO)
    batch = service.api.get(f"/v1/batches/{service.found['batch_id']}").json()
    assert batch["best"] == {"experiment": service.experiments[0], "metric": 12.5}
    search = service.api.get(f"/v1/searches/{service.found['search_id']}").json()
    assert [entry["best_so_far"] for entry in search["best"]] == [12.5]


def test_bits_are_counted_once_per_end_and_not_for_the_baseline(service: Service) -> None:
    with service.context.db.read() as session:
        table = schema.Measurement
        baseline = session.scalars(select(table.id).order_by(table.seed)).all()
    service.finish(baseline[0], state="succeeded", metrics=ONE)
    first, second = service.implement(service.experiments[0], "a = 1\n")
    assert splits(service) == {"search": 0, "sealed": 0}
    service.finish(first, state="succeeded", metrics=ONE, provenance=FACTS_ONE)
    after_one = splits(service)
    assert after_one["sealed"] == 0
    assert 50 < after_one["search"] < 250
    bodies_read = [service.api.get(f"/v1/measurements/{first}").text for _ in range(3)]
    assert len(set(bodies_read)) == 1
    assert splits(service) == after_one, "reading again shows nothing new"
    leak = {"stage": "score", "code": "leak", "message": "no"}
    service.finish(second, state="failed", failure=leak)
    assert splits(service) == {"search": after_one["search"] + OUTCOME_BITS, "sealed": 0}


def test_what_never_met_held_out_data_shows_nothing(service: Service) -> None:
    first, _ = service.implement(service.experiments[0], "a = 1\n")
    crash = {"stage": "train", "code": "crashed", "message": "no"}
    service.finish(first, state="failed", failure=crash)
    assert splits(service) == {"search": 0, "sealed": 0}


def test_a_failure_in_scoring_that_is_tried_again_counts_each_time(service: Service) -> None:
    first, _ = service.implement(service.experiments[0], "a = 1\n")
    failure = {"stage": "score", "code": "evaluation_interrupted", "message": "no"}
    service.finish(first, state="failed", failure=failure, infrastructure=True)
    assert splits(service) == {"search": OUTCOME_BITS, "sealed": 0}


def confirming(service: Service) -> list[str]:
    """Two measurements that confirm an idea."""
    measured = service.implement(service.experiments[0], "a = 1\n")
    with service.context.db.write() as session:
        for id_ in measured:
            session.get_one(schema.Measurement, id_).kind = "confirm"
    return measured


def test_a_confirmation_by_a_worker_that_knows_no_such_kind_is_refused(service: Service) -> None:
    with pytest.raises(AssertionError, match="/provenance/scored_on"):
        service.finish(
            confirming(service)[0], state="succeeded", metrics=ONE, provenance=FACTS_ONE
        )
    assert splits(service) == {"search": 0, "sealed": 0}


def test_a_confirmation_shows_bits_of_the_sealed_split(service: Service) -> None:
    first, second = confirming(service)
    facts = FACTS_ONE | {"scored_on": "sealed"}
    service.finish(first, state="succeeded", metrics=ONE, provenance=facts)
    shown = service.api.get(f"/v1/measurements/{first}").json()
    assert (shown["metric"], shown["kind"]) == (11.4, "confirm")
    assert all(50 < bits < 250 for bits in splits(service).values())
    before = splits(service)
    leak = {"stage": "score", "code": "leak", "message": "no"}
    service.finish(second, state="failed", failure=leak)
    assert splits(service) == {name: bits + OUTCOME_BITS for name, bits in before.items()}


def test_every_code_of_scoring_fits_into_the_bits_of_an_outcome() -> None:
    of_guard = {FailureCode.IMPLAUSIBLE, FailureCode.NOT_CONFIRMED}
    assert len({*REJECTIONS, *of_guard, "succeeded"}) + MOST_DECLARED <= 1 << OUTCOME_BITS


def splits(service: Service) -> dict[str, int]:
    return {split.name: split.bits_shown for split in service.environment().splits}


def test_past_its_budget_a_split_is_worn_and_rankings_ask_for_confirmation(
    tmp_path: Path, service: Service
) -> None:
    assert worn_note(service.environment()) is None
    folder = tmp_path / "tight" / "count"
    write_environment(folder)
    (folder / "environment.toml").write_text(f"held_out_bits = 100\n{MANIFEST}")
    (tmp_path / "again").mkdir()
    tight = open_service(tmp_path / "again", Catalog([tmp_path / "tight"]))
    score(tight, ONE, FACTS_ONE)
    found = {split.name: split for split in tight.environment().splits}
    assert (found["search"].bits_budget, found["search"].worn) == (100, True)
    assert found["search"].bits_shown > 100
    note = worn_note(tight.environment())
    assert note is not None
    assert "confirm the top results (assay experiment confirm)" in note
    assert f"search ({found['search'].bits_shown:,} of 100 bits shown)" in note
    (row,) = tight.api.get("/v1/reports/execution").json()["data"]
    assert row["metric"]["worn"] is True
    assert service.environment().splits[0].bits_budget == 10_000
    tight.context.db.dispose()


def test_counting_is_one_query_that_reads_an_index_alone(service: Service) -> None:
    score(service, ONE, FACTS_ONE)
    with service.context.db.read() as session:
        plan = session.connection().exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT environment_id, sum(search_bits), sum(sealed_bits) "
            "FROM measurement WHERE environment_id IN ('a', 'b') GROUP BY environment_id"
        )
        assert "COVERING INDEX ix_measurement_bits" in str(plan.all())
        assert disclosure.shown_bits(session, ["unknown"])["unknown"].search == 0


def test_a_held_out_key_that_is_not_text_is_not_shown(tmp_path: Path, catalog: Catalog) -> None:
    service = open_service(tmp_path, catalog)
    with service.context.db.read() as session:
        name = session.scalars(select(schema.Worker.name)).one()
    body = {
        "name": name, "incarnation": "two", "cpus": 4, "memory_bytes": 1 << 30,
        "hardware_class": "cpu", "sandbox": "bubblewrap", "isolated": True,
        "info": {"held_out_key": 5},
    }  # fmt: skip
    answer = service.api.post("/internal/v1/workers", json=body, headers=HEADERS)
    assert answer.status_code < 300, answer.text
    assert answer.json()["held_out_key"] is None
