"""The environments' own texts for executors: their examples are edits of these codebases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from assay.environments.catalog import EXAMPLE, RULES, Catalog, Environment
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
    for text in (environment.prompt(RULES), environment.prompt(EXAMPLE)):
        assert text.strip() in prompt.cache_prefix
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
    assert append("prepare.py") != shipped.id
