"""Find files that Python would import in place of a protected one, though they leave it as it is.

Python looks for a folder `model/` with an `__init__` before it looks for `model.py`, for compiled
modules such as `model.abi3.so` before that too, and it may run `__pycache__/model.cpython-311.pyc`
without looking into `model.py`. The same holds for the folders that a protected module is in.
"""

from collections.abc import Collection, Sequence

from assay.patching.paths import fold, is_protected

_IMPORTABLE = (".py", ".pyc", ".pyd", ".so")


def find_shadows(
    files: Collection[str], baseline: Collection[str], protected: Sequence[str]
) -> dict[str, str]:
    """Return the new files that would be imported instead of a protected one, which is the value.

    What the baseline has itself shadows nothing: that is how the environment is meant to run.
    """
    guarded: dict[str, str] = {}
    for name in sorted(baseline):
        module = _module(name) if is_protected(name, protected) else None
        while module:
            guarded.setdefault(module, name)
            module = module.rpartition("/")[0]
    found = {}
    for name in sorted(set(files).difference(baseline)):
        module = _module(name)
        if module in guarded:
            found[name] = guarded[module]
    return found


def _module(name: str) -> str | None:
    """Return the path under which Python would import a file, folded; None if it would not."""
    folded = fold(name)
    if not folded.endswith(_IMPORTABLE):
        return None
    folder, _, base = folded.rpartition("/")
    if folder.split("/")[-1] == "__pycache__":
        folder = folder.rpartition("/")[0]
    stem = base.split(".")[0]
    if stem == "__init__":
        return folder or None
    return f"{folder}/{stem}" if folder else stem
