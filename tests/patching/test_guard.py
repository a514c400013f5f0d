"""What must hold for a patched codebase, however it was made."""

from __future__ import annotations

import pytest

from assay.patching import PatchRefused, RefusalCode, check_codebase, guard

BASELINE = {"train.py": "x = 1\n", "predict.py": "y = 2\n", "data/labels.py": "z = 3\n"}
PROTECTED = ("predict.py", "data/*")


def refusal(files: dict[str, str]) -> RefusalCode:
    with pytest.raises(PatchRefused) as refused:
        check_codebase(files, BASELINE, PROTECTED)
    return refused.value.code


def test_honest_changes_pass() -> None:
    check_codebase(BASELINE, BASELINE, PROTECTED)
    check_codebase(BASELINE | {"train.py": "x = 2\n", "new/part.py": ""}, BASELINE, PROTECTED)
    without = {name: text for name, text in BASELINE.items() if name != "train.py"}
    check_codebase(without, BASELINE, PROTECTED)


@pytest.mark.parametrize(
    "change",
    [
        {"predict.py": "y = 2"},
        {"predict.py": "y = 2\r\n"},
        {"data/labels.py": ""},
        {"data/more.py": "new"},
        {"PREDICT.py": "another on a file system without case"},
    ],
)
def test_a_protected_file_is_the_baselines_to_the_byte(change: dict[str, str]) -> None:
    assert refusal(BASELINE | change) is RefusalCode.PROTECTED


@pytest.mark.parametrize(
    "name",
    [
        "predict/__init__.py",
        "Predict/__init__.py",
        "predict/__init__.abi3.so",
        "predict/__pycache__/__init__.cpython-311.pyc",
        "predict.so",
        "predict.abi3.so",
        "predict.cpython-311-x86_64-linux-gnu.so",
        "predict.pyc",
        "__pycache__/predict.cpython-311.pyc",
        "data.py",
        "data.cpython-311-x86_64-linux-gnu.so",
    ],
)
def test_nothing_may_be_imported_in_place_of_a_protected_file(name: str) -> None:
    with pytest.raises(PatchRefused, match="Python would import") as refused:
        check_codebase(BASELINE | {name: "evil = 1\n"}, BASELINE, PROTECTED)
    assert refused.value.code is RefusalCode.PROTECTED
    assert name in refused.value.log


@pytest.mark.parametrize(
    "name",
    [
        "train/__init__.py",
        "predict/table.txt",
        "predict/part.py",
        "other/predict.py",
        "predict_more.py",
        "__init__.py",
        "predict.txt",
    ],
)
def test_files_that_hide_no_protected_one_may_be_added(name: str) -> None:
    check_codebase(BASELINE | {name: "fine = 1\n"}, BASELINE, PROTECTED)


def test_what_the_baseline_has_beside_a_protected_file_may_be_changed() -> None:
    baseline = BASELINE | {"lib/__init__.py": "", "lib/core.py": ""}
    changed = baseline | {"lib/__init__.py": "x = 1\n"}
    check_codebase(changed, baseline, ("lib/core.py",))


@pytest.mark.parametrize("folder", ["data", "data/", "DATA"])
def test_a_folder_protects_all_that_is_below_it(folder: str) -> None:
    for change in ({"data/labels.py": ""}, {"data/deep/more.py": "new"}):
        with pytest.raises(PatchRefused) as refused:
            check_codebase(BASELINE | change, BASELINE, [folder])
        assert refused.value.code is RefusalCode.PROTECTED
    check_codebase(BASELINE | {"data2/labels.py": ""}, BASELINE, [folder])


def test_a_protected_file_that_is_gone_is_noticed() -> None:
    files = {name: text for name, text in BASELINE.items() if name != "predict.py"}
    assert refusal(files) is RefusalCode.PROTECTED


@pytest.mark.parametrize("name", ["../x.py", "/etc/x", "a/../../x", ".git/hooks/x", "a\x00b"])
def test_names_that_lead_out_are_refused(name: str) -> None:
    assert refusal(BASELINE | {name: "x"}) is RefusalCode.BAD_PATH


def test_sizes_are_limited() -> None:
    longer = BASELINE["train.py"] + "e" * guard.MAX_GROWTH_BYTES
    check_codebase(BASELINE | {"train.py": longer}, BASELINE, PROTECTED)
    assert refusal(BASELINE | {"train.py": longer + "e"}) is RefusalCode.TOO_LARGE
    assert (
        refusal(BASELINE | {"new.py": "é" * (guard.MAX_GROWTH_BYTES // 2 + 1)})
        is RefusalCode.TOO_LARGE
    )
    most = BASELINE | {f"{n}.py": "" for n in range(guard.MAX_FILES - len(BASELINE))}
    check_codebase(most, BASELINE, PROTECTED)
    assert refusal(most | {"more.py": ""}) is RefusalCode.TOO_LARGE


@pytest.mark.parametrize(
    "names", [["é" * 101], ["a/" + "n" * 201], [f"{n}/x" for n in range(201)], ["d/" * 201 + "x"]]
)
def test_names_that_no_disk_would_take_are_refused(names: list[str]) -> None:
    assert refusal(BASELINE | dict.fromkeys(names, "")) in (
        RefusalCode.TOO_LARGE,
        RefusalCode.BAD_PATH,
    )
