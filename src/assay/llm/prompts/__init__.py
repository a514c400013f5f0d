"""The prompts, as text files beside this module, and how they are filled in.

Whatever others wrote (ideas, logs, results) is put between marks that its text cannot contain, and
is announced as data.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template

from assay.llm.interface import Message, Prompt

NAMES = (
    "codebase",
    "profile",
    "executor_system",
    "executor_idea",
    "executor_revision",
    "ideator_system",
    "ideator_log",
    "ideator_positives",
    "ideator_promising",
    "ideator_failed",
    "ideator_seed",
    "ideator_tried",
    "ideator_explore",
    "ideator_exploit",
    "ideator_refine",
    "ideator_combine",
    "ideator_ablate",
    "ideator_rescue",
    "ideator_again",
)

#: Characters of an answer that are shown again when it is to be revised.
MAX_PREVIOUS = 40_000


@functools.cache
def template(name: str) -> str:
    """The text of a prompt file. Raises FileNotFoundError for a name not in `NAMES`."""
    return resources.files(__package__).joinpath(f"{name}.txt").read_text(encoding="utf-8")


def version(*names: str, more: str = "") -> str:
    """Twelve hex digits that change when any of the named prompt files does (all by default).

    `more` is text from elsewhere that counts as well: an environment's own prompts.
    """
    digest = hashlib.sha256(more.encode())
    for name in names or NAMES:
        digest.update(name.encode() + b"\0" + template(name).encode() + b"\0")
    return digest.hexdigest()[:12]


def render(name: str, **values: str) -> str:
    """A prompt file with its `$names` filled in. Raises KeyError if one is missing."""
    return Template(template(name)).substitute(values).strip()


def fenced(label: str, text: str) -> str:
    """`text` between two marks of its own, which do not occur in it."""
    mark = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    size = 8
    while mark[:size] in text and size < len(mark):
        size += 8
    return f"<<<{label} {mark[:size]}\n{text.strip()}\n{label} {mark[:size]}>>>"


def render_codebase(files: Mapping[str, str]) -> str:
    """All files in the order of their names, each line with its number and a tab."""
    parts = []
    for path in sorted(files):
        lines = files[path].removesuffix("\n").split("\n") if files[path] else []
        numbered = "\n".join(f"{i:5d}\t{line}" for i, line in enumerate(lines, 1))
        parts.append(f"=== {path}\n{numbered}")
    return "\n\n".join(parts)


def environment_block(
    *,
    title: str,
    problem: str,
    budget: str,
    protected: Sequence[str],
    files: Mapping[str, str],
    rules: str = "",
    example: str = "",
    profile: str = "",
    profile_notes: str = "",
) -> str:
    """The part of a prompt that is the same for all ideas of an environment, to be cached.

    `profile` is its name with what it is; `profile_notes` say what it means in the code.
    """
    own = [f"Rules of this environment:\n{rules.strip()}"] if rules.strip() else []
    own += (
        [f"An example of an edit of this codebase:\n{example.strip()}"] if example.strip() else []
    )
    return render(
        "codebase",
        title=title,
        problem=problem or "(no further description)",
        profile=render("profile", profile=profile or "the only one", notes=profile_notes.strip()),
        budget=budget or "as the codebase has it",
        protected=", ".join(f"`{name}`" for name in protected) or "none",
        codebase=render_codebase(files),
        own="\n\n".join(own),
    )


def executor_prompt(block: str, idea_text: str) -> Prompt:
    """Ask for the edit of one idea; `block` comes from `environment_block`."""
    idea = render("executor_idea", idea=fenced("IDEA", idea_text))
    return Prompt(template("executor_system").strip(), (Message("user", idea),), block)


def revision_prompt(first: Prompt, previous_answer: str, log: str) -> Prompt:
    """Show the answer that failed with its log or traceback; ask for the whole edit again."""
    revision = render("executor_revision", log=fenced("LOG", log))
    messages = (
        *first.messages,
        Message("assistant", _shortened(previous_answer.strip()) or "(no answer)"),
        Message("user", revision),
    )
    return Prompt(first.system, messages, first.cache_prefix, first.log)


def _shortened(answer: str, most: int = MAX_PREVIOUS) -> str:
    """An answer that went astray may be endless: its ends say enough."""
    if len(answer) <= most:
        return answer
    half = most // 2
    left = len(answer) - 2 * half
    return f"{answer[:half]}\n[… {left} characters left out …]\n{answer[-half:]}"


def log_head(baseline: str) -> str:
    """What stands in front of the first trajectory; `baseline` is a sentence, or empty."""
    return render("ideator_log", baseline=baseline)


def ideator_prompt(
    operator: str,
    block: str,
    *,
    count: int,
    metric: str,
    log: Sequence[str] = (),
    already: Sequence[str] = (),
) -> Prompt:
    """Ask for `count` ideas. `operator` is one of `assay.llm.ideation.Operator`.

    `log` is what was tried, in the parts that providers cache: see `Prompt`. `already` are the
    ideas that earlier calls of the same question had.
    """
    seen = "\n\n".join(already)
    note = (
        f"These were proposed already; propose others:\n\n{fenced('IDEAS', seen)}" if seen else ""
    )
    name = "tried" if operator == "seed" and log else operator
    text = render(f"ideator_{name}", count=str(count), metric=metric, already=note)
    system = template("ideator_system").strip()
    return Prompt(system, (Message("user", text),), block, tuple(log))


def ideas_again_prompt(
    first: Prompt, answer: str, unread: Sequence[str], most: int = MAX_PREVIOUS
) -> Prompt:
    """Show an answer with passages that could not be read as ideas; ask for these again.

    Of answer and passages at most `most` characters each are shown.
    """
    passages = fenced("PASSAGES", _shortened("\n\n".join(unread), most))
    messages = (
        *first.messages,
        Message("assistant", _shortened(answer.strip(), most) or "(no answer)"),
        Message("user", render("ideator_again", passages=passages)),
    )
    return Prompt(first.system, messages, first.cache_prefix, first.log)
