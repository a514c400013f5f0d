"""Any two codebases on the same seeds: folders, experiments, hashes and the baseline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.client import Client
from assay.domain.hashing import text_tree_hash
from assay.domain.seeds import fresh_seeds
from tests.support.service import ServiceProcess, toy_batch, toy_ideas

TOY = ("--env", "toy", "--profile", "tiny")


def folder(place: Path, files: dict[str, str], **changes: str) -> str:
    """A work tree of git with the environment's files, and what was changed."""
    for name, text in {**files, **changes, ".git/HEAD": "ref: refs/heads/main\n"}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(place)


@pytest.mark.slow
def test_any_two_codebases_are_compared_on_the_same_seeds(
    service: ServiceProcess, tmp_path: Path
) -> None:
    with Client(service.ready["api"]) as client:
        files = client.environments.codebase("toy").files
        search = files["search.py"]
        steps = {
            name: search.replace("STEP = 0.6", f"STEP = {step}")
            for name, step in (("small", 0.15), ("large", 2.5))
        }
        assert search not in steps.values()
        small, large = (
            folder(tmp_path / name, files, **{"search.py": text}) for name, text in steps.items()
        )

        unknown = service.assay("compare", small, "baseline", *TOY)
        assert (unknown.returncode, "--seeds 5" in unknown.stderr) == (1, True)

        # A folder against the baseline; then both are known, and nothing is measured again.
        measured = service.assay("compare", small, "baseline", *TOY, "--seeds", "5")
        assert measured.returncode == 0, measured.stderr
        told = " ".join(measured.stdout.split())
        assert "A: the folder" in told
        assert "B: the baseline (" in told
        assert "score (maximize)" in told
        assert "positive: A is better" in told
        hashes = [text_tree_hash(files | {"search.py": steps["small"]}), text_tree_hash(files)]
        seeds = fresh_seeds(hashes, 5)
        (batch,) = client.batches.list()
        assert (batch.executor, batch.usage.calls) == ("none", 0)
        again = json.loads(service.assay("compare", small, "baseline", *TOY, "--json").stdout)
        pair = again["data"]
        assert (pair["a"]["codebase"], pair["b"]["codebase"]) == tuple(hashes)
        assert (pair["seeds"], pair["b"]["is_baseline"]) == (seeds, True)
        assert pair["comparison"]["effect"] > 0
        assert len(list(client.batches.list())) == 1

        # Two folders, in one batch.
        two = service.assay("compare", large, small, *TOY, "--seeds", "4", "--json")
        assert two.returncode == 0, two.stderr
        pair = json.loads(two.stdout)["data"]
        assert (len(pair["seeds"]), pair["comparison"]["effect"] < 0) == (4, True)
        assert pair["a"]["conditions"] == pair["b"]["conditions"]
        given = client.experiments.get(pair["a"]["experiment"])
        assert given.idea.codebase == given.codebase == pair["a"]["codebase"]
        assert "-STEP = 0.6\n+STEP = 2.5" in client.experiments.diff(given.id)
        assert "submitted as it is" in service.assay("experiment", "show", given.id).stdout

        # An experiment against a folder, and against another experiment.
        first = client.batches.wait(client.batches.create(toy_batch(toy_ideas(2))).id)
        ideas = [each.id for each in client.experiments.list(batch=first.id)]
        mixed = service.assay("compare", ideas[0][-8:], large, "--seeds", "3", "--json")
        assert mixed.returncode == 0, mixed.stderr
        pair = json.loads(mixed.stdout)["data"]
        assert (len(pair["seeds"]), pair["environment"]) == (3, first.environment)
        measured_again = client.experiments.get(pair["a"]["experiment"])
        assert measured_again.idea.parents == [ideas[0]]
        assert measured_again.codebase == client.experiments.get(ideas[0]).codebase
        stored = service.assay("compare", *ideas, "--json")
        assert json.loads(stored.stdout)["data"]["seeds"] == [0]
        same = service.assay("compare", small, small, *TOY, "--seeds", "3")
        assert (same.returncode, "same codebase" in same.stderr) == (2, True)


def test_a_hostile_folder_is_refused(service: ServiceProcess, tmp_path: Path) -> None:
    with Client(service.ready["api"]) as client:
        files = client.environments.codebase("toy").files
        sealed = folder(
            tmp_path / "sealed", files, **{"landscape.py": "def height(*_): return 0\n"}
        )
        linked = folder(tmp_path / "linked", files)
        Path(linked, "secret.py").symlink_to("/etc/passwd")
        binary = folder(tmp_path / "binary", files)
        Path(binary, "weights.bin").write_bytes(b"\xff\xfe\x00")
        for place, said in (
            (sealed, "landscape.py is protected"),
            (linked, "no symbolic links"),
            (binary, "not UTF-8"),
            (str(tmp_path / "absent"), "no such folder"),
        ):
            refused = service.assay("compare", place, "baseline", *TOY, "--seeds", "3")
            assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
        assert list(client.batches.list()) == []
        nowhere = service.assay("compare", sealed, "baseline", "--seeds", "3")
        assert (nowhere.returncode, "--env and --profile" in nowhere.stderr) == (2, True)
