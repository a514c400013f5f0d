"""Where edits land, and what is refused."""

import pytest

from assay.patching import PatchRefused, RefusalCode, apply_answer
from assay.patching.types import MAX_LOG_CHARACTERS

TRAIN = """import math

def warm(step):
    rate = 1
    return rate

def cool(step):
    rate = 1
    return rate

print(warm(1))
"""
FILES = {"train.py": TRAIN, "pkg/model.py": "width = 8\ndepth = 2\n", "predict.py": "x = 1\n"}


def edited(answer, files=FILES, **options):
    return apply_answer(dict(files), answer, **options)


def refused(answer, files=FILES, **options):
    with pytest.raises(PatchRefused) as caught:
        apply_answer(dict(files), answer, **options)
    return caught.value


def diff(*lines, path="train.py"):
    return "\n".join([f"--- a/{path}", f"+++ b/{path}", *lines])


def test_wrong_numbers_do_not_matter():
    result = edited(diff("@@ -90,2 +1,77 @@", " import math", "+import sys", " "))
    assert result.files["train.py"] == TRAIN.replace("import math\n", "import math\nimport sys\n")
    hunk = result.report.files[0].hunks[0]
    assert (hunk.line, hunk.tier, hunk.added, hunk.removed) == (1, "exact", 1, 0)
    assert result.files["pkg/model.py"] == FILES["pkg/model.py"]


@pytest.mark.parametrize(
    "wrap",
    [
        "{}",
        "{}\n",
        "Sure.\n\n```diff\n{}\n```\nThis raises the width.",
        "```\n{}\n```",
        "diff --git a/pkg/model.py b/pkg/model.py\nindex 1..2 100644\n{}\n",
    ],
)
@pytest.mark.parametrize("prefixes", [("a/", "b/"), ("", "")])
def test_wrappers_and_prefixes(wrap, prefixes):
    old, new = prefixes
    body = f"--- {old}pkg/model.py\t2026-01-01\n+++ {new}pkg/model.py\n@@\n-width = 8\n+width = 16"
    result = edited(wrap.format(body))
    assert result.files["pkg/model.py"] == "width = 16\ndepth = 2\n"


def test_new_and_deleted_files():
    answer = (
        "--- /dev/null\n+++ b/pkg/extra.py\n@@ -0,0 +1,9 @@\n+y = 2\n+z = 3\n"
        "--- a/pkg/model.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-width = 8\n-depth = 2\n"
    )
    result = edited(answer)
    assert result.files["pkg/extra.py"] == "y = 2\nz = 3\n"
    assert "pkg/model.py" not in result.files
    assert [record.change for record in result.report.files] == ["created", "deleted"]


def test_deleting_with_other_content_is_refused():
    answer = "--- a/pkg/model.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-width = 8\n"
    assert refused(answer).code == RefusalCode.NO_MATCH


def test_search_replace_blocks_with_the_name_in_prose():
    answer = (
        "In `pkg/model.py`:\n<<<<<<< SEARCH\nwidth = 8\n=======\nwidth = 9\n>>>>>>> REPLACE\n"
        "and also\n\n```python\n<<<<<<< SEARCH\ndepth = 2\n=======\ndepth = 3\n>>>>>>> REPLACE\n"
        "```\npkg/new.py\n<<<<<<< SEARCH\n=======\na = 1\n>>>>>>> REPLACE\n"
    )
    files = edited(answer).files
    assert files["pkg/model.py"] == "width = 9\ndepth = 3\n"
    assert files["pkg/new.py"] == "a = 1\n"


def test_blocks_that_follow_on_each_other():
    answer = (
        "pkg/model.py\n<<<<<<< SEARCH\nwidth = 8\n=======\nwide = 8\n>>>>>>> REPLACE\n"
        "<<<<<<< SEARCH\nwide = 8\n=======\nwide = 9\n>>>>>>> REPLACE\n"
    )
    result = edited(answer)
    assert result.files["pkg/model.py"] == "wide = 9\ndepth = 2\n"
    assert [hunk.late for hunk in result.report.files[0].hunks] == [False, True]


def test_two_places_are_refused_and_named():
    error = refused(diff("@@", "-    rate = 1", "+    rate = 2", "     return rate"))
    assert error.code == RefusalCode.AMBIGUOUS
    assert "line 4 in `def warm(step):`" in error.log
    assert "line 8 in `def cool(step):`" in error.log


def test_two_places_with_the_same_outcome_are_one():
    files = {"n.txt": "a\nx\nx\nb\n"}
    assert edited(diff("@@", "-x", path="n.txt"), files).files == {"n.txt": "a\nx\nb\n"}


def test_context_decides_between_look_alikes():
    body = diff("@@", " def cool(step):", "-    rate = 1", "+    rate = 2")
    after = edited(body).files["train.py"]
    assert after == TRAIN.replace("cool(step):\n    rate = 1", "cool(step):\n    rate = 2")


def test_a_tie_at_a_strict_tier_does_not_fall_through():
    files = {"n.txt": "x\nx\nx \n\ny\n"}
    error = refused(diff("@@", "-x", "+z", path="n.txt"), files)
    assert error.code == RefusalCode.AMBIGUOUS


def test_trailing_whitespace_is_tolerated_and_kept():
    files = {"n.txt": "one  \ntwo\nthree\t\n"}
    result = edited(diff("@@", " one", "-two ", "+2", " three", path="n.txt"), files)
    assert result.files["n.txt"] == "one  \n2\nthree\t\n"
    assert result.report.files[0].hunks[0].tier == "trailing_whitespace"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line_endings_of_the_file_stay(ending):
    files = {"n.txt": "one\r\ntwo\r\nthree\r\n"}
    answer = diff("@@", " one", "-two", "+2", " three", path="n.txt").replace("\n", ending)
    assert edited(answer, files).files["n.txt"] == "one\r\n2\r\nthree\r\n"


@pytest.mark.parametrize(
    ("hunk", "after"),
    [
        ((" a", "-b", "+B", " c"), "a\n\nB\n\n\nc\nd\n"),
        ((" a", " ", " ", "-b", "+B", " ", " c"), "a\n\nB\n\n\nc\nd\n"),
        ((" a", "", " b", "", " c", "+C"), "a\n\nb\n\n\nc\nC\nd\n"),
    ],
)
def test_blank_lines_may_differ(hunk, after):
    files = {"n.txt": "a\n\nb\n\n\nc\nd\n"}
    result = edited(diff("@@", *hunk, path="n.txt"), files)
    assert result.files["n.txt"] == after
    assert result.report.files[0].hunks[0].tier == "aligned"


def test_no_match_shows_what_stands_there():
    error = refused(diff("@@", " def cool(step):", "-    rate = 7", "+    rate = 2"))
    assert error.code == RefusalCode.NO_MATCH
    assert "'    rate = 7'" in error.log
    assert "    8\t    rate = 1" in error.log
    assert "Send the whole answer again" in error.log


def test_the_log_is_bounded():
    lines = [f"-{'w' * 500}{i}" for i in range(400)]
    answer = "".join(diff("@@", *lines[i : i + 2]) + "\n" for i in range(0, 400, 2))
    assert len(refused(answer).log) <= MAX_LOG_CHARACTERS


def test_already_applied():
    change = ("@@", " width = 8", "-depth = 2", "+depth = 3")
    files = edited(diff(*change, path="pkg/model.py")).files
    assert refused(diff(*change, path="pkg/model.py"), files).code == RefusalCode.ALREADY_APPLIED
    block = "pkg/model.py\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n"
    for search, replace in (
        ("width = 8", "width = 8\ndepth = 2"),
        ("depth = 2", "width = 8\ndepth = 2"),
    ):
        assert refused(block.format(search, replace)).code == RefusalCode.ALREADY_APPLIED


def test_overlapping_changes_conflict_but_repeats_do_not():
    one = diff("@@", "-width = 8", "+width = 9", " depth = 2", path="pkg/model.py")
    two = diff("@@", "-width = 8", "+width = 10", path="pkg/model.py")
    assert refused(f"{one}\n{two}\n").code == RefusalCode.CONFLICT
    assert edited(f"{one}\n{one}\n").files["pkg/model.py"] == "width = 9\ndepth = 2\n"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("I would raise the width.", RefusalCode.NO_DIFF),
        ("", RefusalCode.NO_DIFF),
        (diff("@@", " width = 8", path="pkg/model.py"), RefusalCode.NO_CHANGE),
        (diff("@@", "-x = 1", "+x = 2", path="nowhere.py"), RefusalCode.UNKNOWN_FILE),
        (diff("@@", "+x = 2", path="/etc/passwd").replace("a//", "/"), RefusalCode.BAD_PATH),
        (diff("@@", "+x = 2", path="../out.py"), RefusalCode.BAD_PATH),
        (diff("@@", "+x = 2", path="pkg/.git/config"), RefusalCode.BAD_PATH),
        (diff("@@", "+x = 2", path="C:\\out.py"), RefusalCode.BAD_PATH),
        (diff("@@", "+x = 2", path="train.py/x.py"), RefusalCode.BAD_PATH),
        (diff("@@", "+x = 2", path="Train.py"), RefusalCode.BAD_PATH),
        (diff("@@", "-x = 1", "+x = 2", path="predict.py"), RefusalCode.PROTECTED),
        (diff("@@", "+x = 2", path="PREDICT.py"), RefusalCode.PROTECTED),
        (diff("@@", "+x = 2", path="safe/new.py"), RefusalCode.PROTECTED),
        (diff("@@", "+x = 2", path="link/new.py"), RefusalCode.SYMLINK),
        (diff("@@", "+x = 2", path="pkg/model.py"), RefusalCode.AMBIGUOUS),
        ("--- /dev/null\n+++ b/train.py\n@@ -0,0 +1 @@\n+x\n", RefusalCode.FILE_EXISTS),
        ("diff --git a/t b/u\ncopy from t\ncopy to u\n", RefusalCode.UNSUPPORTED),
        ("--- /dev/null\n+++ b/n\nnew file mode 120000\n", RefusalCode.MALFORMED),
        ("diff --git a/n b/n\nnew file mode 120000\n", RefusalCode.UNSUPPORTED),
        (diff(path="train.py"), RefusalCode.MALFORMED),
        ("@@ -1 +1 @@\n-a\n+b\n", RefusalCode.AMBIGUOUS),
        ("```diff\n" + diff("@@", " import math", "what", "+x") + "\n```", RefusalCode.NO_MATCH),
        ("pkg/model.py\n<<<<<<< SEARCH\nwidth = 8\n=======\n", RefusalCode.MALFORMED),
        ("x" * (1 << 20) + "y", RefusalCode.TOO_LARGE),
        (diff("@@", "-width = 8", "+width = (8", path="pkg/model.py"), RefusalCode.SYNTAX_ERROR),
        ("--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+def\n", RefusalCode.SYNTAX_ERROR),
    ],
)
def test_refusals(answer, code):
    error = refused(answer, protected=["predict.py", "safe/*"], symlinks={"link": "/etc"})
    assert error.code == code
    assert error.log


@pytest.mark.parametrize("added", [[], ["+    x = 3"]])
def test_two_places_in_the_definition_a_hunk_names_are_ambiguous(added):
    warm = "def warm():\n    x = 1\n    y = 2\n    x = 1\n\n\n"
    files = {"t.py": f"{warm}def cool():\n    x = 1\n    z = 1\n"}
    change = ["-    x = 1", *added]
    assert refused(diff("@@ def warm():", *change, path="t.py"), files).code == "ambiguous"
    after = edited(diff("@@ def cool():", *change, path="t.py"), files).files["t.py"]
    assert after.startswith(warm)
    assert ("x = 3" in after) == bool(added)


def test_a_file_that_did_not_parse_may_stay_so():
    files = {"old.py": "print 'x'\ny = 1\n"}
    assert (
        edited(diff("@@", "-y = 1", "+y = 2", path="old.py"), files)
        .files["old.py"]
        .endswith("2\n")
    )


def test_a_short_count_does_not_cut_a_hunk():
    body = diff(
        "@@ -1,2 +1,2 @@", "-width = 8", "+width = 9", "", "-depth = 2", "+depth = 3", path="m"
    )
    files = {"m": "width = 8\n\ndepth = 2\n"}
    assert edited(body, files).files["m"] == "width = 9\n\ndepth = 3\n"


def test_a_context_line_without_its_marker():
    body = diff("@@ -1,3 +1,3 @@", "def cool(step):", "-    rate = 1", "+    rate = 2")
    assert "cool(step):\n    rate = 2" in edited(body).files["train.py"]


def test_final_newline_can_be_added_and_removed():
    marker = "\\ No newline at end of file"
    answer = diff("@@", "-b", marker, "+b", path="n")
    assert edited(answer, {"n": "a\nb"}).files["n"] == "a\nb\n"
    answer = diff("@@", "-b", "+b", marker, path="n")
    assert edited(answer, {"n": "a\nb\n"}).files["n"] == "a\nb"
    answer = diff("@@", "-a", "+c", marker, path="n")  # a false marker in the middle
    assert edited(answer, {"n": "a\nb\n"}).files["n"] == "c\nb\n"
