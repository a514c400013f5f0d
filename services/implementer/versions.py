"""Environments by name: as they stand on disk, or as they stood when somebody used them.

An environment's folder changes; batches and searches that were submitted before must still be
shown and go on. Their version is in the object store, under its hash.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from assay.domain.errors import InvalidInput, NotFound
from assay.environments.bundle import unpack_tree, write_tree
from assay.environments.catalog import Catalog, Environment
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import ObjectStore, bundle_key


class Versions:
    """Looks environments up, by `name` or `name@hash`."""

    def __init__(self, catalog: Catalog, db: Database, store: ObjectStore) -> None:
        self._catalog = catalog
        self._db = db
        self._store = store
        self._folder: Path | None = None
        self._known: dict[str, Environment] = {}

    def all(self) -> list[Environment]:
        """Every environment on disk, by name."""
        return self._catalog.all()

    def get(self, name: str) -> Environment:
        """The environment on disk, or for `name@hash` the version that was used before.

        Raises:
            NotFound: there is none of that name.
            InvalidInput: its manifest is wrong, or no version of that hash was ever used here.
        """
        try:
            return self._catalog.get(name)
        except (InvalidInput, NotFound):
            stored = self._stored(name) if "@" in name else None
            if stored is None:
                raise
            return stored

    def _stored(self, name: str) -> Environment | None:
        if name not in self._known:
            with self._db.read() as session:
                row = session.get(schema.Environment, name)
            if row is None:
                return None
            folder = self._scratch() / name
            write_tree(unpack_tree(self._store.get(bundle_key(row.bundle))), folder)
            self._known[name] = Environment.load(folder, unpacked=True)
        return self._known[name]

    def _scratch(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="assay-environments-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder
