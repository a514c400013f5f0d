"""The object store in S3, or in anything that speaks its protocol.

A key is never overwritten: writes carry `If-None-Match: *`. Whether the endpoint obeys that is
tried out before the first write; where it does not, a key is looked up before it is written,
which suffices because a key names its content or belongs to one attempt.

Workers hold no credentials. They PUT and GET at presigned URLs that name one key, and for a PUT
also size and hash, and end after 15 minutes.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from assay.domain.errors import AssayError, InvalidInput, NotFound, Unavailable
from assay.environments.bundle import check_name
from assay.storage.objects import CHUNK, Listed, Stat, Upload, UploadUrl

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_log = logging.getLogger(__name__)
URL_SECONDS = 900
_PROBE = "probe"
_RACES = 8
REST_SECONDS = 1.0
_FIND_OUT_SECONDS = 30.0
_EXISTS = frozenset({"PreconditionFailed", "412"})
_RACE = frozenset({"ConditionalRequestConflict", "409", "OperationAborted"})
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_NO_BUCKET = frozenset({"NoSuchBucket"})
_UNKNOWN_HEADER = frozenset({"NotImplemented", "501", "InvalidArgument", "InvalidRequest"})
_FULL = frozenset({"507", "InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"})
_DENIED = frozenset(
    {"AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)


class _NoAnswer(Unavailable):
    """The endpoint did not answer at all."""

    code = "object_store_unavailable"


class S3Store:
    """A bucket, or what is below a prefix in it. Safe to use from several threads."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        endpoint_url: str | None = None,
        public_endpoint_url: str | None = None,
        region: str | None = None,
        *,
        rest_seconds: float = REST_SECONDS,
    ) -> None:
        """`public_endpoint_url` is what URLs for workers name, if they reach the store there.

        An endpoint that did not answer is left alone for `rest_seconds`.
        """
        self.bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._region = region
        self._client = _client(endpoint_url, region)
        public = public_endpoint_url or endpoint_url
        self._public = self._client if public == endpoint_url else _client(public, region)
        self._breaker = _Breaker(bucket, rest_seconds)
        self._lock = threading.Lock()
        self._conditional: bool | None = None

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        endpoint_url: str | None = None,
        public_endpoint_url: str | None = None,
        region: str | None = None,
    ) -> S3Store:
        """The store that `s3://bucket/prefix` names. Raises InvalidInput."""
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise InvalidInput(f"{url!r} is not an address like s3://bucket/prefix")
        return cls(parts.netloc, parts.path, endpoint_url, public_endpoint_url, region)

    @property
    def conditional(self) -> bool:
        """Whether the endpoint refuses to overwrite by itself."""
        with self._faults("an object"):
            return self._is_conditional()

    def put(self, key: str, data: bytes) -> bool:
        return self._put(self._name(key), data, hashlib.sha256(data).digest())

    @contextmanager
    def upload(self, key: str) -> Iterator[Upload]:
        with tempfile.TemporaryFile(prefix="assay-upload-") as file:
            yield _S3Upload(self, self._name(key), file)

    def get(self, key: str) -> bytes:
        return b"".join(self.stream(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        wanted = f"bytes={start}-{start + length - 1}"
        with self._faults(key):
            try:
                answer = self._client.get_object(
                    Bucket=self.bucket, Key=self._name(key), Range=wanted
                )
            except ClientError as error:
                if _code(error) in ("InvalidRange", "416"):
                    return b""
                raise
            return answer["Body"].read()

    def stream(self, key: str) -> Iterator[bytes]:
        with self._faults(key):
            answer = self._client.get_object(Bucket=self.bucket, Key=self._name(key))
            self._breaker.answered()  # the reader may take its time
            yield from answer["Body"].iter_chunks(CHUNK)

    def exists(self, key: str) -> bool:
        return self.stat(key) is not None

    def stat(self, key: str) -> Stat | None:
        try:
            with self._faults(key):
                answer = self._client.head_object(
                    Bucket=self.bucket, Key=self._name(key), ChecksumMode="ENABLED"
                )
        except NotFound:
            return None
        checksum = answer.get("ChecksumSHA256")
        sha256 = base64.b64decode(checksum).hex() if checksum and "-" not in checksum else None
        return Stat(answer["ContentLength"], sha256)

    def upload_url(self, key: str, size: int, sha256: str) -> UploadUrl | None:
        checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
        headers = {
            "Content-Length": str(size),
            "x-amz-checksum-sha256": checksum,
            "x-amz-sdk-checksum-algorithm": "SHA256",
        }
        params: dict[str, Any] = {"ContentLength": size, **_checksum(checksum)}
        if self.conditional:
            headers["If-None-Match"] = params["IfNoneMatch"] = "*"
        return UploadUrl(self._signed("put_object", key, params), headers)

    def download_url(self, key: str) -> str | None:
        return self._signed("get_object", key, {})

    def list(self, prefix: str) -> Iterator[Listed]:
        pages = self._client.get_paginator("list_objects_v2")
        with self._faults(prefix):
            for page in pages.paginate(Bucket=self.bucket, Prefix=self._prefix + prefix):
                self._breaker.answered()
                for item in page.get("Contents", []):
                    key = item["Key"].removeprefix(self._prefix)
                    yield Listed(key, item["Size"], item["LastModified"])

    def remove(self, key: str) -> None:
        with self._faults(key):
            self._client.delete_object(Bucket=self.bucket, Key=self._name(key))

    def check(self) -> None:
        name = f"{self._prefix}.assay/check"
        with self._faults("an object"):
            self._is_conditional()
            self._client.put_object(Bucket=self.bucket, Key=name, Body=b"")

    def _name(self, key: str) -> str:
        check_name(key)
        return self._prefix + key

    def _signed(self, method: str, key: str, params: dict[str, Any]) -> str:
        with self._translated(key):
            return self._public.generate_presigned_url(
                method,
                Params={"Bucket": self.bucket, "Key": self._name(key), **params},
                ExpiresIn=URL_SECONDS,
            )

    def _put(self, name: str, body: bytes | IO[bytes], sha256: bytes) -> bool:
        """Store under the full name, and win or lose a race for it."""
        arguments: dict[str, Any] = _checksum(base64.b64encode(sha256).decode())
        with self._faults(name):
            if self._is_conditional():
                arguments["IfNoneMatch"] = "*"
            elif self._is_there(name):
                return False
            for race in range(_RACES):
                if not isinstance(body, bytes):
                    body.seek(0)
                try:
                    self._client.put_object(Bucket=self.bucket, Key=name, Body=body, **arguments)
                except ClientError as error:
                    if _code(error) in _EXISTS:
                        return False
                    if _code(error) not in _RACE or race == _RACES - 1:
                        raise
                    time.sleep(random.uniform(0.02, 0.1) * (race + 1))
                else:
                    return True
        raise AssertionError("the last round returns or raises")

    def _is_there(self, name: str) -> bool:
        try:
            self._client.head_object(Bucket=self.bucket, Key=name)
        except ClientError as error:
            if _code(error) in _MISSING:
                return False
            raise
        return True

    def _is_conditional(self) -> bool:
        failures = self._breaker.failures
        with self._lock:
            if self._conditional is None:
                self._breaker.refuse_since(failures)  # whoever held the lock waited in vain
                self._ensure_bucket()
                self._conditional = self._probe()
            return self._conditional

    def _ensure_bucket(self) -> None:
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except ClientError as error:
            if _code(error) not in _MISSING | _NO_BUCKET:
                return  # credentials may write objects and not ask about buckets
            self._create_bucket()

    def _create_bucket(self) -> None:
        region = self._client.meta.region_name
        more: dict[str, Any] = {}
        if region != "us-east-1":
            more["CreateBucketConfiguration"] = {"LocationConstraint": region}
        try:
            self._client.create_bucket(Bucket=self.bucket, **more)
        except ClientError as error:
            if _code(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists", "409"):
                raise
        else:
            _log.info("bucket %s was made", self.bucket)

    def _probe(self) -> bool:
        """Write a key twice; an endpoint that knows conditions refuses the second."""
        name = f"{self._prefix}.assay/{_PROBE}"
        for _ in range(2):
            try:
                self._client.put_object(Bucket=self.bucket, Key=name, Body=b"", IfNoneMatch="*")
            except ClientError as error:
                if _code(error) in _EXISTS | _RACE:
                    return True
                if _code(error) not in _UNKNOWN_HEADER:
                    raise
                break
        _log.warning(
            "bucket %s: its endpoint ignores If-None-Match; keys are looked up before they are "
            "written",
            self.bucket,
        )
        return False

    @contextmanager
    def _faults(self, what: str) -> Iterator[None]:
        """A call to the endpoint. Not nested: it is let through or refused as one."""
        self._breaker.enter()
        try:
            with self._translated(what):
                yield
        except _NoAnswer:
            self._breaker.failed()
            raise
        except BaseException:
            self._breaker.answered()
            raise
        self._breaker.answered()

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Errors of boto3 as those of this library."""
        try:
            yield
        except ClientError as error:
            raise self._fault(error, what) from error
        except BotoCoreError as error:
            raise _NoAnswer(
                f"the object store (bucket {self.bucket}) cannot be used: {error}"
            ) from error

    def _fault(self, error: ClientError, what: str) -> AssayError:
        code, bucket = _code(error), self.bucket
        if code in _MISSING:
            return NotFound(f"the object {what} is not in the store")
        if code in _FULL:
            return Unavailable(f"the object store (bucket {bucket}) is full", code="disk_full")
        if code in _DENIED:
            return Unavailable(
                f"the object store (bucket {bucket}) refused {error.operation_name} of {what}: "
                f"{code}; check the credentials and the bucket's policy",
                code="object_store_denied",
            )
        return Unavailable(
            f"the object store (bucket {bucket}) cannot be used: {error}",
            code="object_store_unavailable",
        )


class _Breaker:
    """Refuses calls for a moment after the endpoint did not answer one.

    A store that swallows requests would otherwise keep every thread of a service waiting, and
    with them the requests that need no store.
    """

    def __init__(self, bucket: str, rest_seconds: float) -> None:
        self._bucket = bucket
        self._rest_seconds = rest_seconds
        self._lock = threading.Lock()
        self._closed_until = 0.0
        self.failures = 0

    def enter(self) -> None:
        """Go on, or raise Unavailable. After a pause one caller goes first and finds out."""
        with self._lock:
            now = time.monotonic()
            if now < self._closed_until:
                self._refuse()
            if self._closed_until:
                self._closed_until = now + _FIND_OUT_SECONDS

    def refuse_since(self, failures: int) -> None:
        """Raise Unavailable if a call has failed since there were so many failures."""
        if self.failures != failures:
            self._refuse()

    def answered(self) -> None:
        with self._lock:
            self._closed_until = 0.0

    def failed(self) -> None:
        with self._lock:
            self.failures += 1
            self._closed_until = time.monotonic() + self._rest_seconds

    def _refuse(self) -> NoReturn:
        raise Unavailable(
            f"the object store (bucket {self._bucket}) did not answer a moment ago",
            code="object_store_unavailable",
        )


class _S3Upload:
    """Collected in a file, because S3 wants to know size and hash first."""

    def __init__(self, store: S3Store, name: str, file: IO[bytes]) -> None:
        self._store, self._name, self._file = store, name, file
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise Unavailable(
                f"an upload does not fit on this host's disk: {error}", code="disk_full"
            ) from error

    def commit(self) -> bool:
        return self._store._put(self._name, self._file, self._digest.digest())


def _client(endpoint_url: str | None, region: str | None) -> S3Client:
    session = boto3.Session()
    return session.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=region or session.region_name or "us-east-1",
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if endpoint_url else "auto"},
            # Other servers than AWS do not know the trailing checksums that boto3 adds.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=3,
            read_timeout=20,
            retries={"mode": "standard", "max_attempts": 3},
            max_pool_connections=64,
        ),
    )


def _checksum(value: str) -> dict[str, str]:
    return {"ChecksumSHA256": value, "ChecksumAlgorithm": "SHA256"}


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
