"""The environments' own texts for executors: their examples are edits of these codebases."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest

from assay.environments.catalog import EXAMPLE, PROFILE_NOTES, RULES, Catalog, Environment
from assay.llm import ImplementRequest
from assay.llm.executors import implement_prompt, prompt_version
from assay.patching import apply_answer

NAMES = ("nanogpt", "grpo")


def request(environment: Environment) -> ImplementRequest:
    return ImplementRequest(
        environment_title=environment.manifest.title,
        files=environment.codebase,
        protected=environment.manifest.codebase.protected,
        idea_text="Train longer.",
        problem=environment.manifest.problem,
        rules=environment.prompt(RULES),
        example=environment.prompt(EXAMPLE),
        profile="tiny",
        profile_notes=environment.profile_notes("tiny"),
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_example_applies(name: str) -> None:
    environment = Catalog().get(name)
    protected = environment.manifest.codebase.protected
    result = apply_answer(environment.codebase, environment.prompt(EXAMPLE), protected=protected)
    (changed,) = [n for n, text in result.files.items() if text != environment.codebase[n]]
    compile(result.files[changed], changed, "exec")


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_holds_all_a_model_needs(name: str) -> None:
    environment = Catalog().get(name)
    prompt = implement_prompt(request(environment))
    for path in environment.codebase:
        assert f"=== {path}\n" in prompt.cache_prefix
    for path in environment.manifest.codebase.protected:
        assert f"`{path}`" in prompt.cache_prefix
    own = environment.prompt(RULES), environment.prompt(EXAMPLE), environment.profile_notes("tiny")
    for text in own:
        assert text.strip() in prompt.cache_prefix
    assert "Profile: tiny\n" in prompt.cache_prefix
    assert "No dependencies can be added" in prompt.cache_prefix
    assert "Train longer." not in prompt.cache_prefix, "the same for every idea of a batch"


def test_the_version_of_a_prompt_is_that_of_all_its_files() -> None:
    versions = {prompt_version(request(Catalog().get(name))) for name in NAMES}
    versions.add(prompt_version(request(Catalog().get("toy"))))
    assert len(versions) == 3


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_no_part_of_the_environments_hash(name: str, tmp_path: Path) -> None:
    shipped = Catalog().get(name)
    copy = shutil.copytree(shipped.folder, tmp_path / name)

    def append(path: str) -> str:
        with (copy / path).open("a") as file:
            file.write("# one more line\n")
        return Environment.load(copy).id

    assert append(RULES) == append(EXAMPLE) == shipped.id
    assert append(PROFILE_NOTES.format("tiny")) == shipped.id
    assert append(PROFILE_NOTES.format("new")) == shipped.id
    assert append("prompts/notes.txt") != shipped.id
    assert append("prepare.py") != shipped.id


def config_classes(environment: Environment) -> tuple[dict[str, str], dict[str, set[str]]]:
    """The class of each profile, and the fields that each class sets itself."""
    classes: dict[str, set[str]] = {}
    profiles: dict[str, str] = {}
    for node in ast.parse(environment.codebase["config.py"]).body:
        if isinstance(node, ast.ClassDef):
            fields = [n.target for n in node.body if isinstance(n, ast.AnnAssign)]
            classes[node.name] = {f.id for f in fields if isinstance(f, ast.Name)}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROFILES":
            assert isinstance(node.value, ast.Dict)
            keys = [ast.literal_eval(key) for key in node.value.keys if key is not None]
            profiles = dict(zip(keys, map(ast.unparse, node.value.values), strict=True))
    return profiles, classes


@pytest.mark.parametrize("name", NAMES)
def test_the_notes_on_a_profile_say_what_its_class_sets(name: str) -> None:
    """Otherwise a model edits a field of `Config` that the profile overrides, to no effect."""
    environment = Catalog().get(name)
    profiles, classes = config_classes(environment)
    assert set(profiles) == set(environment.manifest.profiles)
    for profile, class_name in profiles.items():
        notes = environment.profile_notes(profile)
        assert f"the class `{class_name}` in config.py" in notes
        listed = re.search(r"It sets (.*?)[:;]", notes)
        said = set(re.findall(r"`(\w+)`", listed[1])) if listed else set()
        assert said == (set() if class_name == "Config" else classes[class_name]), profile


def test_a_budget_is_told_in_words() -> None:
    profiles = Catalog().get("nanogpt").manifest.profiles
    assert profiles["tiny"].in_words == (
        "1 CPU core, no GPU and 4 GB of memory; 286,720 training tokens, each counted as often as "
        "it is read; at most 1.55 times the baseline for the CPU time of training; at most 3 "
        "times the baseline for the CPU time of the evaluation; at most 2 times the baseline for "
        "the size of what training leaves; training is ended after 300 s of wall clock and 120 s "
        "of CPU time"
    )
    assert profiles["single-gpu"].in_words == (
        "8 CPU cores, 1 GPU and 48 GB of memory; 1500 s of wall clock for training, so speed "
        "counts; before that, at most 420 s to compile, without data"
    )
