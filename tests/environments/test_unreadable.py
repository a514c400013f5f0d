"""An environment that cannot be read now: the caller is told to try again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from assay.domain.errors import Unavailable
from assay.environments.catalog import Catalog


def _no_file_left(path: Path, *args: object, **options: object) -> str:
    raise OSError(errno.EMFILE, "Too many open files", str(path))


@pytest.mark.parametrize("method", ["iterdir", "read_text"])
def test_no_file_can_be_opened(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(Path, method, _no_file_left)
    with pytest.raises(Unavailable, match=r"Too many open files.*try again"):
        catalog.get("count")


def test_no_file_of_an_environment_can_be_opened(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = catalog.get("count")
    monkeypatch.setattr(Path, "read_bytes", _no_file_left)
    with pytest.raises(Unavailable, match=r"Too many open files.*try again"):
        _ = environment.id
    with pytest.raises(Unavailable, match=r"Too many open files.*try again"):
        _ = environment.codebase
