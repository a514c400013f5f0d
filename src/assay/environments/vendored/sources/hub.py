"""Files of the Hugging Face hub: downloaded once, verified, with errors that say what to do.

`huggingface_hub` keeps finished files in its cache ($HF_HOME) and continues a download where the
connection broke. What it does not do is done here: to look whether everything is there before a
large download starts, to give up soon when nothing answers, and to compare what arrived with the
hash that the hub has of it (SHA-256, or git's for small files).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ATTEMPTS = 3
TIMEOUT = 5.0  # seconds for the answer to one question
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def fetch(
    repo: str, names: Sequence[str], *, kind: str, own: str, revision: str = "main"
) -> Iterator[Path]:
    """Yields the local path of every file, in order, as soon as it is there and verified.

    `kind` is "model" or "dataset"; `own` names, for error messages, what may stand in
    $ASSAY_DATASETS instead. With all files in the cache nothing is sent over the network.
    """
    cached = [in_cache(repo, name, kind, revision) for name in names]
    found = [path for path in cached if path]
    if len(found) == len(names):
        for path in found:
            verify(path, recorded_hash(path), repo)
            yield path
        return
    known = listing(repo, kind, own, revision)
    if missing := [name for name in names if name not in known]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise SystemExit(
            f"{repo}: the hub has no {', '.join(missing[:3])}{more} in revision {revision}; it has"
            f" {', '.join(sorted(known)[:9])}{', ...' if len(known) > 9 else ''}"
        )
    check_space(sum(known[n].size or 0 for n, path in zip(names, cached, strict=True) if not path))
    for number, name in enumerate(names, 1):
        started = time.monotonic()

        def get(hub: Any, name: str = name) -> str:
            return download(hub, repo, name, kind, revision)

        path = Path(ask(get, repo, own))
        sibling = known[name]
        verify(path, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id, repo)
        megabytes, seconds = path.stat().st_size / 1e6, time.monotonic() - started
        print(f"[{number}/{len(names)}] {name}: {megabytes:.1f} MB in {seconds:.0f} s", flush=True)
        yield path


def listing(repo: str, kind: str, own: str, revision: str = "main") -> dict[str, Any]:
    """What the hub knows about every file of a repository: `size`, `lfs.sha256` or `blob_id`."""

    def look(hub: Any) -> Any:
        return hub.HfApi().repo_info(
            repo, repo_type=kind, revision=revision, timeout=TIMEOUT, files_metadata=True
        )

    return {s.rfilename: s for s in ask(look, repo, own, attempts=ATTEMPTS).siblings}


def download(hub: Any, repo: str, name: str, kind: str, revision: str) -> str:
    return str(hub.hf_hub_download(repo, name, repo_type=kind, revision=revision))


def in_cache(repo: str, name: str, kind: str, revision: str) -> Path | None:
    hub = library()
    found = hub.try_to_load_from_cache(repo, name, repo_type=kind, revision=revision)
    return Path(found) if isinstance(found, str) else None


def recorded_hash(path: Path) -> str | None:
    """The cache links a file's name to its content, which is named by the hub's hash of it."""
    name = Path(os.readlink(path)).name if path.is_symlink() else ""
    return name if HASH.fullmatch(name) else None


def verify(path: Path, expected: str | None, repo: str) -> None:
    """Compare a file with its hash: SHA-256, or git's SHA-1 of a file that git itself keeps."""
    if expected is None:
        return
    digest = hashlib.sha256()
    if len(expected) == 40:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    if digest.hexdigest() != expected:
        content = path.resolve()
        path.unlink()
        content.unlink(missing_ok=True)
        raise SystemExit(
            f"{repo}: {path.name} has the wrong checksum {digest.hexdigest()}, the hub promised"
            f" {expected}; it was removed from the cache: run again to download it anew"
        )


def link(path: Path, target: Path) -> None:
    """A second name for the same bytes; a copy where the disk is another one."""
    source = path.resolve()  # the cache names files by links
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def check_space(needed: int) -> None:
    cache = Path(library().constants.HF_HUB_CACHE)
    while not cache.exists():
        cache = cache.parent
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise SystemExit(
            f"{needed / 1e9:.1f} GB are to be downloaded, {cache} has {free / 1e9:.1f} GB free:"
            " make room or set HF_HOME to a larger disk"
        )


def library() -> Any:
    """`huggingface_hub`, imported only when something is wanted from the hub."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # a log is no terminal
    # Xet, the hub's newer protocol, talks to hosts that mirrors and firewalls do not know.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    try:
        import huggingface_hub
    except ImportError:
        raise SystemExit("files of the hub need `pip install huggingface_hub`") from None
    return huggingface_hub


def ask(question: Callable[[Any], Any], repo: str, own: str, attempts: int = 1) -> Any:
    """The answer to a question to the hub, or an explanation why there is none."""
    hub = library()
    for attempt in range(1, attempts + 1):
        try:
            return question(hub)
        # OSError and the HTTP library's errors; which one that is depends on the hub's version.
        except (OSError, hub.errors.HTTPError) as error:
            final = refusal(hub, error, repo, own)
            if final or attempt == attempts:
                raise SystemExit(final or unreachable(hub, error, repo, own)) from None
            print(f"{repo}: {error}; trying again", flush=True)
            time.sleep(attempt)
    return None


def refusal(hub: Any, error: Exception, repo: str, own: str) -> str | None:
    """What the hub, or the disk, said; None if trying again may help."""
    address = hub.constants.ENDPOINT
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return f"{repo}: no space left to download: make room or set HF_HOME to a larger disk"
    if isinstance(error, hub.errors.OfflineModeIsEnabled):
        return (
            f"{repo}: not in the cache, and HF_HUB_OFFLINE forbids to ask the hub: unset it, or"
            f" set ASSAY_DATASETS to a folder that holds {own}"
        )
    if isinstance(error, hub.errors.GatedRepoError):
        return f"{repo}: gated: accept its terms at {address}/{repo} and set HF_TOKEN"
    if isinstance(error, hub.errors.RepositoryNotFoundError):
        return (
            f"{repo}: {address} has no such repository, or it is private: check it, set HF_TOKEN"
        )
    if isinstance(error, hub.errors.RevisionNotFoundError):
        return f"{repo}: {address} has no such revision"
    if isinstance(error, hub.errors.RemoteEntryNotFoundError):
        return f"{repo}: a file is not there: {error}"
    return None


def unreachable(hub: Any, error: Exception, repo: str, own: str) -> str:
    cause = error.__cause__ or error
    return (
        f"{repo}: the Hugging Face hub at {hub.constants.ENDPOINT} cannot be reached"
        f" ({type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else 'no answer'})."
        f" Set HF_ENDPOINT to a mirror, or ASSAY_DATASETS to a folder that holds {own}"
    )
