"""Copy an object store: `python -m assay.storage.mirror FROM TO`, each `s3://…` or a folder.

What is there already is left alone, since a key's bytes never change: the second copy takes what
is new. `ASSAY_SERVER_S3_ENDPOINT_URL` and `ASSAY_SERVER_S3_REGION` say where a bucket is; both
addresses may name buckets of that server.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from assay.domain.errors import AssayError, NotFound, Unavailable

if TYPE_CHECKING:
    from assay.storage.objects import ObjectStore

AT_ONCE = 8


def mirror(source: ObjectStore, target: ObjectStore) -> int:
    """Copy every object that the target lacks. Returns how many.

    Raises:
        Unavailable: a store cannot be used; what was copied until then stays.
    """
    wanted = [found for found in source.list("") if not _is_temporary(found.key)]

    def copy(key: str, size: int) -> bool:
        there = target.stat(key)
        if there is not None and there.size == size:
            return False
        try:
            with target.upload(key) as upload:
                for part in source.stream(key):
                    upload.write(part)
                if not upload.commit():
                    raise Unavailable(f"{key} is in the way: another object has its name")
        except NotFound:  # garbage that was removed since it was listed
            return False
        return True

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(lambda found: copy(found.key, found.size), wanted))


def _is_temporary(key: str) -> bool:
    """What a store keeps for itself, or holds while something is written; no key is like that."""
    return any(part.startswith(".") for part in key.split("/"))


def open_address(address: str) -> ObjectStore:
    """The store at an address. Raises InvalidInput."""
    from assay.storage.objects import LocalStore

    if not address.startswith("s3://"):
        return LocalStore(Path(address))
    from assay.storage.s3 import S3Store

    return S3Store.from_url(
        address,
        endpoint_url=os.environ.get("ASSAY_SERVER_S3_ENDPOINT_URL"),
        region=os.environ.get("ASSAY_SERVER_S3_REGION"),
    )


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m assay.storage.mirror", description=__doc__)
    parser.add_argument("source", metavar="FROM")
    parser.add_argument("target", metavar="TO")
    given = parser.parse_args(arguments)
    try:
        copied = mirror(open_address(given.source), open_address(given.target))
    except AssayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{copied} objects copied\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
