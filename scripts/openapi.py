"""Write docs/openapi.json from the code, or with --check say whether it is current."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from assay.environments.catalog import Catalog
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings

TARGET = Path(__file__).resolve().parent.parent / "docs" / "openapi.json"


def described() -> str:
    """The API's description, as it is committed."""
    with tempfile.TemporaryDirectory() as folder:
        context = Context(
            Database(f"sqlite:///{folder}/none.db"),
            LocalStore(Path(folder)),
            Catalog([]),
            ImplementerSettings(),
        )
        description = create_app(context).openapi()
    return json.dumps(description, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Write or check."""
    if "--check" in sys.argv:
        if TARGET.read_text() == described():
            return 0
        sys.stderr.write("docs/openapi.json is not current; run `make openapi`\n")
        return 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(described())
    return 0


if __name__ == "__main__":
    sys.exit(main())
