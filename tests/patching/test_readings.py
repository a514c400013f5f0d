"""How answers in disrepair are read: one case for every rule, beyond what stands exactly."""

import pytest

from assay.patching import PatchRefused, RefusalCode, apply_answer

MODEL = """import math
import torch

WIDTH = 8


class Block:
    def __init__(self, width):
        self.width = width

    def forward(self, x):
        # Mix the channels first.
        y = self.mix(x)
        y = self.norm(y)
        return x + y


class Head:
    def __init__(self, width):
        self.width = width

    def forward(self, x):
        logits = self.project(x)
        return logits


def rate(step):
    if step < 10:
        return 0.1
    return 0.01
"""
FILES = {"model.py": MODEL, "run.sh": "set -e\npython train.py --lr 0.1\n"}


def diff(*lines, path="model.py"):
    return "\n".join([f"--- a/{path}", f"+++ b/{path}", *lines, ""])


def patched(answer, files=FILES, **options):
    return apply_answer(dict(files), answer, **options)


def model(answer):
    """The edited model, and how its first hunk was placed."""
    result = patched(answer)
    return result.files["model.py"], result.report.files[0].hunks[0].tier


def code(answer, files=FILES, **options):
    with pytest.raises(PatchRefused) as caught:
        apply_answer(dict(files), answer, **options)
    assert caught.value.log
    return caught.value.code


def test_a_block_written_at_another_depth_is_set_in():
    answer = diff("@@", " y = self.mix(x)", "+if x.any():", "+    y = y + 1", " y = self.norm(y)")
    text, tier = model(answer)
    assert "        if x.any():\n            y = y + 1\n        y = self.norm(y)\n" in text
    assert tier == "indentation"


def test_tabs_become_the_columns_that_the_file_shows():
    answer = diff("@@", " \t\ty = self.mix(x)", "+\t\tif x.any():", "+\t\t\ty = y + 1")
    assert (
        "        if x.any():\n            y = y + 1\n        y = self.norm(y)\n"
        in model(answer)[0]
    )


def test_word_processor_quotes_are_plain_in_code():
    files = {"model.py": "a = 'x'\nb = 'y'\n"}
    answer = diff("@@", " a = \u2018x\u2019", "-b = \u2018y\u2019", "+b = \u2018z\u2019")
    assert patched(answer, files).files["model.py"] == "a = 'x'\nb = 'z'\n"


def test_context_may_be_paraphrased_missing_or_invented_at_the_edge():
    paraphrased = diff("@@", "         # Mix channels.", "-        y = self.mix(x)",
                       "+        y = self.mix2(x)", "         y = self.norm(y)")  # fmt: skip
    missing = diff("@@", "     def forward(self, x):", "-        y = self.mix(x)",
                   "+        y = self.mix2(x)", "         y = self.norm(y)")  # fmt: skip
    invented = diff("@@", "         assert x.ndim == 3", "-        y = self.mix(x)",
                    "+        y = self.mix2(x)", "         y = self.norm(y)",
                    "         return x + y")  # fmt: skip
    for answer in (paraphrased, missing, invented):
        text, tier = model(answer)
        assert text == MODEL.replace("self.mix(x)", "self.mix2(x)")
        assert tier == "aligned"


def test_removed_lines_are_never_paraphrased():
    assert code(diff("@@", "-        y = self.mixed(x)", "+        y = 1",
                     "         y = self.norm(y)")) == RefusalCode.NO_MATCH  # fmt: skip


def test_nothing_goes_where_lines_are_left_out():
    answer = diff(
        "@@", "         # Mix the channels first.", "+        z = 1", "         return x + y"
    )
    assert code(answer) == RefusalCode.NO_MATCH


def test_an_ellipsis_stands_for_what_is_left_out():
    answer = diff("@@", " class Block:", "     # ...", "         y = self.norm(y)",
                  "+        y = y * 2", "         return x + y")  # fmt: skip
    assert model(answer)[0] == MODEL.replace("self.norm(y)\n", "self.norm(y)\n        y = y * 2\n")


def test_two_hunks_written_as_one_are_taken_apart():
    answer = diff("@@", " import math", "-import torch", "+import torch as t", " ",
                  "     if step < 10:", "-        return 0.1", "+        return 0.2",
                  "     return 0.01")  # fmt: skip
    assert model(answer)[0] == MODEL.replace("import torch", "import torch as t").replace(
        "return 0.1\n", "return 0.2\n"
    )


def test_a_hunk_may_be_written_against_the_result_of_another():
    answer = diff("@@", "-WIDTH = 8", "+WIDTH = 16", "@@", " WIDTH = 16", "+DEPTH = 2")
    result = patched(answer)
    assert "WIDTH = 16\nDEPTH = 2\n" in result.files["model.py"]
    assert [hunk.late for hunk in result.report.files[0].hunks] == [False, True]


def test_the_function_named_behind_the_at_signs_tells_equal_places_apart():
    answer = diff("@@ -1,1 +1,1 @@ class Head:", "-        self.width = width",
                  "+        self.size = width")  # fmt: skip
    text = model(answer)[0]
    assert text.index("self.size") > text.index("class Head")
    assert code(answer, {"model.py": text}) == RefusalCode.ALREADY_APPLIED


def test_line_numbers_tell_nothing_apart_but_equal_hunks():
    one = ("-        self.width = width", "+        self.size = width")
    assert code(diff("@@ -9 +9 @@", *one)) == RefusalCode.AMBIGUOUS
    assert code(diff("@@ -9 +9 @@", *one, "@@ -9 +9 @@", *one)) == RefusalCode.AMBIGUOUS
    twice = diff("@@ -9 +9 @@", *one, "@@ -20 +20 @@", *one)
    assert model(twice)[0] == MODEL.replace("self.width =", "self.size =")


def test_a_place_that_another_hunk_changes_is_taken():
    answer = diff("@@", " class Block:", "     def __init__(self, width):",
                  "-        self.width = width", "+        self.first = width",
                  "@@ -20 +20 @@", "-        self.width = width",
                  "+        self.second = width")  # fmt: skip
    text = model(answer)[0]
    assert text.index("self.first") < text.index("class Head") < text.index("self.second")


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("variant/idea_3/model.py", "model.py"),
        ("model.py (original)", "model.py"),
        ("`model.py`", "model.py"),
        ("./model.py", "model.py"),
        ("utils.py", "lib/utils.py"),
        ("repo/lib/utils.py", "lib/utils.py"),
    ],
)
def test_names_that_mean_one_file(raw, path):
    files = {"model.py": "x = 1\n", "lib/utils.py": "x = 1\n"}
    answer = f"--- {raw}\n+++ {raw}\n@@\n-x = 1\n+x = 2\n"
    assert patched(answer, files).files[path] == "x = 2\n"


def test_a_name_that_means_two_files_is_told_by_content_or_refused():
    files = {"a/utils.py": "x = 1\n", "b/utils.py": "y = 1\n"}
    answer = "--- c/utils.py\n+++ c/utils.py\n@@\n-y = 1\n+y = 2\n"
    assert patched(answer, files).files["b/utils.py"] == "y = 2\n"
    assert code(answer, dict.fromkeys(files, "y = 1\n")) == RefusalCode.AMBIGUOUS


def test_a_rename_with_an_edit_and_an_invented_folder_for_a_new_file():
    answer = (
        "diff --git a/run.sh b/bin/run.sh\nsimilarity index 80%\nrename from run.sh\n"
        "rename to bin/run.sh\n@@ -1,2 +1,2 @@\n set -e\n-python train.py --lr 0.1\n"
        "+python train.py --lr 0.2\n--- repo/model.py\n+++ repo/model.py\n@@\n-WIDTH = 8\n"
        "+WIDTH = 9\n--- /dev/null\n+++ repo/extra.py\n@@\n+z = 1\n"
    )
    result = patched(answer)
    assert result.files["bin/run.sh"] == "set -e\npython train.py --lr 0.2\n"
    assert set(result.files) == {"bin/run.sh", "model.py", "extra.py"}
    renamed = result.report.files[0]
    assert (renamed.change, renamed.renamed_from) == ("renamed", "run.sh")
    assert code(answer, result.files) == RefusalCode.ALREADY_APPLIED


def test_v4a_and_blocks_in_one_answer():
    answer = (
        "*** Begin Patch\n*** Update File: model.py\n@@ def rate(step):\n     if step < 10:\n"
        "-        return 0.1\n+        return 0.3\n*** Add File: new.py\n+n = 1\n*** End Patch\n\n"
        "run.sh\n<<<<<<< SEARCH\nset -e\n=======\nset -eu\n>>>>>>> REPLACE\n"
    )
    result = patched(answer)
    assert "return 0.3" in result.files["model.py"]
    assert result.files["new.py"] == "n = 1\n"
    assert result.files["run.sh"].startswith("set -eu\n")
    assert set(result.report.formats) == {"v4a", "search_replace"}


def test_numbers_before_every_line_are_taken_off():
    lines = diff("@@ -4,1 +4,1 @@", "-WIDTH = 8", "+WIDTH = 9").rstrip("\n").split("\n")
    for form in ("{} {}", "{:3d}  {}", "{}\t{}", "{:4d} | {}"):
        answer = "\n".join(form.format(n, line) for n, line in enumerate(lines, 1))
        assert model(answer)[0] == MODEL.replace("WIDTH = 8", "WIDTH = 9")


def test_line_endings_that_only_some_lines_have_are_noise():
    answer = diff("@@\r", " import math\r", "+import os", " import torch")
    assert model(answer)[0] == MODEL.replace("import torch", "import os\nimport torch", 1)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (diff("@@", "         y = self.norm(y)", "+        # ... rest of the code unchanged",
              "         return x + y"), "placeholder"),
        (diff("@@", "-        y = self.norm(y)", "+        ...", "         return x + y"),
         "placeholder"),
        ("```diff\n" + diff("@@ -4,5 +4,9 @@", " WIDTH = 8", "+DEPTH = 2").rstrip(), "truncated"),
        ("```diff\n" + diff("@@ -4,1 +4,1 @@", "-WIDTH = 8", "+WIDTH = 9")
         + "@@ -12,3 +12,4 @@ class Block\n", "malformed"),
        (diff("@@", " WIDTH = 8").rstrip() + "\nBinary files a/x.bin and b/x.bin differ\n",
         "unsupported"),
        (diff("@@", "-WIDTH = 8", "+WIDTH = 9") + "diff --git a/model.py b/m.py\n"
         "rename from model.py\nrename to m.py\n", "conflict"),
        ("--- a/model.py\n+++ b/other.py\n@@\n-WIDTH = 8\n+WIDTH = 9\n", "bad_path"),
        ("model.py\n<<<<<<< SEARCH\na\n=======\nb\n=======\nc\n>>>>>>> REPLACE\n", "malformed"),
        ("```diff\n" + diff("@@ -4,1 +4,1 @@", "-WIDTH = 8", "+WIDTH = 9")
         + "Then, further down,\nin the same file,\n" + "we change\n" * 12
         + "-        return 0.1\n+        return 0.2\n```\n", "malformed"),
        ("--- a/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", "already_applied"),
        ("\ud800", "malformed"),
    ],
)  # fmt: skip
def test_refusals(answer, expected):
    assert code(answer) == expected


def test_stubs_are_code():
    answer = diff("@@", " def rate(step):", "-    if step < 10:", "-        return 0.1",
                  "-    return 0.01", "+    ...", "+", "+", "+def other(): ...")  # fmt: skip
    assert model(answer)[0].endswith("def rate(step):\n    ...\n\n\ndef other(): ...\n")
