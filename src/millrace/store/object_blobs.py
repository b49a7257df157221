"""ObjectBlobs: the objects under one prefix, each put once, whole, by one of those who try.

One operation carries the commit protocol: :meth:`ObjectBlobs.put_if_absent`, a conditional put
(``If-None-Match: *``). Its outcome is never guessed. A time-out, a dropped connection or a 500 may
come before or after the put took effect, and a client that sends it again may then be refused
because of its own first try. So whenever a name is found taken, what is there is read back and
compared: the content is unique to its writer, hence equal content means that this call put it.

The client below never repeats a request by itself; every retry is made, logged and bounded here.

What a refusal means, whether it passes, and what to do about it, is said here as well. The client's
own messages are long, and what is in them is the client's to change: the URL of an Azure request,
for one, carries the signature of its access token. So nothing of them is passed on but a status,
the store's own error code, and words chosen here.

:class:`BucketUrl` says which bucket and prefix a checkpoint's URL names, and how it is reached. It
holds no secret, and is therefore kept, logged and sent to workers. Credentials, endpoint and region
are read from the environment of each process, or come from the cloud's own chain (instance
metadata, web identity, workload identity), by obstore.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from millrace.model.errors import CheckpointUnwritable, PipelineError, StoreError
from millrace.model.time import MINUTE, SECOND, duration_us
from millrace.store.blobs import PieceAppender

_STORES: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}

#: Scheme -> prefix of the variables that its client reads from the environment.
VARIABLES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
_ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_ENDPOINT"}

# Spellings of other programs -> ours.
_ALIASES = {
    "s3a": "s3://bucket/prefix",
    "s3n": "s3://bucket/prefix",
    "abfs": "az://container/prefix",
    "abfss": "az://container/prefix",
    "wasb": "az://container/prefix",
    "wasbs": "az://container/prefix",
    "gcs": "gs://bucket/prefix",
}

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)/*(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class BucketUrl:
    """Scheme, bucket and prefix; the prefix has no slash at either end and may be empty.

    >>> url = BucketUrl.parse("s3://flights/ckpt/zeitgeist/")
    >>> url, str(url)
    (BucketUrl(scheme='s3', bucket='flights', prefix='ckpt/zeitgeist'), 's3://flights/ckpt/zeitgeist')
    """

    scheme: str
    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str, subject: str = "checkpoint") -> BucketUrl:
        """Return the parts of a URL.

        Args:
            text: The URL.
            subject: What it is of, for messages.

        Raises:
            PipelineError: It is no URL of a bucket. A message never repeats what may be a secret.
        """
        match = _URL.fullmatch(text)
        scheme = match[1].lower() if match else ""
        if match is None or scheme not in _STORES:
            hint = f" Write {_ALIASES[scheme]}." if scheme in _ALIASES else ""
            raise PipelineError(
                f"{subject} with scheme {scheme!r}: expected s3://bucket/prefix, gs://bucket/"
                f"prefix or az://container/prefix.{hint}"
            )
        bucket, prefix = match[2], match[3].strip("/")
        if not _BUCKET.fullmatch(bucket) or "?" in prefix or "#" in prefix:
            raise PipelineError(
                f"{subject} {scheme}://...: expected {scheme}://bucket/prefix, found something "
                "else in the place of the bucket, or a query. Credentials and endpoints do not "
                "belong into the URL, which is logged: set them in the environment of the driver "
                "and of every worker."
            )
        if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
            raise PipelineError(
                f"{subject} {text!r}: a part of the prefix is empty, '.' or '..'. Write the "
                "prefix as the names of the objects begin."
            )
        return cls(scheme, bucket, prefix)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


@dataclass(frozen=True)
class BucketOptions:
    """How patient a client is. Travels from the driver to its workers.

    Attributes:
        timeout_us: For one request and its answer.
        retry_for_us: For how long a request that fails in passing is tried again.
        requests: Requests under way at a time, of one process.
    """

    timeout_us: int = 30 * SECOND
    retry_for_us: int = 2 * MINUTE
    requests: int = 16

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> BucketOptions:
        """Return what the environment says, by default that of this process.

        Raises:
            PipelineError: A variable has no sense.

        >>> BucketOptions.from_environment({"MILLRACE_OBJECT_TIMEOUT": "5 s"}).timeout_us
        5000000
        """
        variables = os.environ if environment is None else environment
        defaults = cls()
        name = "MILLRACE_OBJECT_REQUESTS"
        requests = variables.get(name, str(defaults.requests))
        if not requests.isdecimal() or not 1 <= int(requests) <= 1000:
            raise PipelineError(f"{name}={requests!r}: expected a number from 1 to 1000")
        return cls(
            _duration(variables, "MILLRACE_OBJECT_TIMEOUT", defaults.timeout_us),
            _duration(variables, "MILLRACE_OBJECT_RETRY_FOR", defaults.retry_for_us),
            int(requests),
        )


def connect(
    url: BucketUrl, options: BucketOptions, *, retries: bool, subject: str = "checkpoint"
) -> Any:
    """Return obstore's client for a bucket; names are relative to the prefix.

    Args:
        url: The bucket.
        options: Time-outs.
        retries: Let obstore try again by itself: only for what may be sent twice.
        subject: What the URL is of, for messages.

    Raises:
        PipelineError: The variables of the environment make no client.
    """
    allow_http = os.environ.get(f"{VARIABLES[url.scheme]}_ALLOW_HTTP", "").lower()
    timeout = timedelta(microseconds=options.timeout_us)
    retry: dict[str, Any] = {"max_retries": 0}
    if retries:
        patience = timedelta(microseconds=options.retry_for_us)
        retry = {"max_retries": 1000, "retry_timeout": patience}
    try:
        return _STORES[url.scheme](
            url.bucket,
            prefix=url.prefix or None,
            client_options={
                "timeout": timeout,
                "connect_timeout": min(timeout, timedelta(seconds=5)),
                "allow_http": allow_http in ("1", "true", "yes"),
            },
            retry_config=retry,
        )
    except (exceptions.BaseError, ValueError) as error:
        raise PipelineError(f"{subject} {url}: {_unusable(str(error), url.scheme)}") from None


def _unusable(message: str, scheme: str) -> str:
    """Return what is wrong with the environment; a client's message may have a secret in it."""
    known = (part for text, part in _UNUSABLE.items() if text in message.lower())
    return next(
        known,
        f"one of the {VARIABLES[scheme]}_* variables of the environment has a value that the "
        "client cannot use. Compare them with the documentation of the store.",
    )


#: What the clients say of variables -> what to do.
_UNUSABLE = {
    "account must be specified": "AZURE_STORAGE_ACCOUNT_NAME is not set. Set it for the driver and "
    "every worker.",
    "invalid access key": "AZURE_STORAGE_ACCOUNT_KEY is no base64. Copy the whole key.",
    "service account": "the file that GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS "
    "names cannot be read, or holds no credentials. Correct the path, on every worker too.",
    "as boolean": "one of the variables of the environment is neither true nor false.",
}


def _duration(environment: Mapping[str, str], name: str, default_us: int) -> int:
    text = environment.get(name)
    if text is None:
        return default_us
    try:
        found_us = duration_us(text)
    except (ValueError, TypeError):
        found_us = 0
    if found_us <= 0:
        raise PipelineError(f"{name}={text!r}: expected a duration, such as '30 s' or '2 min'")
    return found_us


_STATUS = re.compile(r"status code:? (\d{3})")
#: How delta-rs draws what led to what.
_DRAWN = re.compile(r"\s*\x1b\[31m↳\x1b\[0m\s*")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_METADATA_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")

_CREDENTIALS = frozenset(
    {
        "AccessDenied", "AuthenticationFailed", "AuthorizationFailure", "ExpiredToken",
        "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
    }
)  # fmt: skip
#: S3 answers these with 400, and its own clients try again: a request came in pieces or too slowly,
#: or there were too many.
_PASSING = frozenset(
    {
        "BadDigest", "IncompleteBody", "PriorRequestNotComplete", "RequestThrottled",
        "RequestThrottledException", "RequestTimeout", "RequestTimeoutException", "SlowDown",
        "ThrottledException", "Throttling", "ThrottlingException",
    }
)  # fmt: skip
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"})
_REGION = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)


@dataclass(frozen=True)
class Diagnosis:
    """Why a request failed.

    Attributes:
        what: In a few words, without anything secret.
        passing: Whether to try again has a chance.
        remedy: What to do, an imperative sentence.
    """

    what: str
    passing: bool
    remedy: str


class TakenByNothing(Exception):
    """A put was refused because the name is taken, and then nothing was there."""


class ForeignAnswer(Exception):
    """A page came in place of a store's answer, such as a proxy's that wants a login.

    Args:
        kind: Its content type.
        title: Its title; empty if it has none.
    """

    def __init__(self, kind: str, title: str) -> None:
        titled = f" with the title {title!r}" if title else ""
        super().__init__(f"200, and a page of type {kind}{titled}, which is no store's answer")


def _is_of_xml(store: Any) -> bool:
    """Return whether a client takes any page that can be parsed for a list without objects."""
    return isinstance(store, S3Store | GCSStore)


def _title(page: bytes) -> str:
    """Return the title of a page, in short and without a URL, which may be that of the request.

    >>> _title(b"<html><title>Sign in to  proxy</title>"), _title(b"<title>http://a?sig=b</title>")
    ('Sign in to proxy', '')
    """
    match = _TITLE.search(page[:_TITLE_BYTES].decode(errors="replace"))
    words = match[1].split() if match else []
    return " ".join(word for word in words if not _OF_URLS & {*word})[:80]


def refuse_missing_bucket(error: FileNotFoundError) -> None:
    """Raise the error again if it is the bucket that is missing, and not an object in it."""
    code = _CODE.search(str(error))
    if code is not None and code[1] in _NO_BUCKET:
        raise error


def is_beyond_the_end(error: Exception) -> bool:
    """Return whether a range of an object was asked for that begins where it has ended."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    return (
        (status is not None and status[1] == "416")
        or (code is not None and code[1] == "InvalidRange")
        or "Invalid range" in text
    )


def diagnose(error: Exception, url: BucketUrl) -> Diagnosis:
    """Return what an exception of obstore means, or of another client that is made of the same."""
    text = _DRAWN.sub(" ", str(error))
    status_match, code_match = _STATUS.search(text), _CODE.search(text)
    status = int(status_match[1]) if status_match else 0
    code = code_match[1] if code_match else ""
    status_and_code = " ".join(part for part in (str(status or ""), code) if part)
    variables = VARIABLES[url.scheme]
    if isinstance(error, TakenByNothing):
        return Diagnosis(
            "a put was refused as if the name were taken, and nothing is there", True,
            "See whether something else writes or deletes under the checkpoint's prefix",
        )  # fmt: skip
    if isinstance(error, ForeignAnswer):
        return Diagnosis(
            text, True,
            f"See which proxy or login page answers, and {_ENDPOINTS[url.scheme]} if it is set",
        )  # fmt: skip
    if code in _NO_BUCKET:
        kind = "container" if url.scheme == "az" else "bucket"
        return Diagnosis(
            status_and_code, False, f"Make the {kind} {url.bucket!r}, or correct its name"
        )
    if code in _REGION or status == 301:
        return Diagnosis(
            status_and_code, False, f"Set {variables}_REGION to the region of the bucket"
        )
    if any(host in text for host in _METADATA_HOSTS):
        return Diagnosis(
            "no credentials in the environment, and none from the cloud's metadata service", False,
            _credentials(variables),
        )  # fmt: skip
    if code == "RequestTimeTooSkewed":
        return Diagnosis(
            status_and_code, False, "Set the clock of the host, which differs from the store's"
        )
    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    if isinstance(error, denied) or status in (401, 403) or code in _CREDENTIALS:
        return Diagnosis(status_and_code or "access denied", False, _credentials(variables))
    if isinstance(error, exceptions.NotSupportedError) or status == 501:
        return Diagnosis(
            status_and_code or "not supported", False,
            "Use a store that has conditional puts (If-None-Match: *), such as Amazon S3",
        )  # fmt: skip
    if "BadScheme" in text:
        return Diagnosis(
            "the endpoint is http://, which is not encrypted", False,
            f"Use https://, or set {variables}_ALLOW_HTTP=true where the network is yours",
        )  # fmt: skip
    if code in _PASSING or status in (408, 409, 425, 429) or status >= 500:
        return Diagnosis(status_and_code, True, "See what the store's own status says")
    if status == 400 and not code:
        return Diagnosis(
            "400, and an answer to HEAD has no room for a reason", False, _credentials(variables)
        )
    if status or isinstance(error, exceptions.InvalidPathError | ValueError):
        return Diagnosis(
            status_and_code or type(error).__name__, False, "See the documentation of the store"
        )
    if "TimedOut" in text or "timed out" in text or "Timeout" in text:
        return Diagnosis(
            "no answer in time", True,
            "Check the network, or raise MILLRACE_OBJECT_TIMEOUT where it is slow",
        )  # fmt: skip
    reached = "Connect" not in text and "connect" not in text
    return Diagnosis(
        "no usable answer" if reached else "it cannot be reached", True,
        f"Check the network, and {_ENDPOINTS[url.scheme]} if it is set",
    )  # fmt: skip


def _credentials(variables: str) -> str:
    return (
        "Give the driver and every worker credentials that may read, write, list and delete "
        f"there: the {variables}_* variables of their environment, or a role of the machine"
    )


_log = logging.getLogger("millrace")

# A first retry after 50 to 100 ms covers a dropped connection, one every 2.5 to 5 s afterwards does
# not add to what an overloaded store has to do.
_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 5.0

# Larger uploads go in parts, so that not all of them need be in memory.
_UPLOAD_WHOLE_BYTES = 8 << 20
_DOWNLOAD_PIECE_BYTES = 1 << 20

# What the stores answer at a time.
_LIST_NAMES = 1000

_TITLE = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)
_TITLE_BYTES = 4096
_OF_URLS = frozenset(":/?&=")

_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")

_REFUSALS = (exceptions.BaseError, TakenByNothing, ForeignAnswer, ValueError, OSError)


class ObjectBlobs:
    """The :class:`~millrace.store.Blobs` under a prefix. Threads may share it.

    Args:
        url: Where.
        options: Time-outs, retries.
        subject: What is there, for messages.
        store: obstore's client, without retries of its own, or what has its ``put``, ``get``,
            ``head``, ``list`` and ``delete``; by default made from the URL.
        clock: Seconds that only go forward.
        sleep: Waits for so many seconds.
        turns: Makes a lock by which threads take turns at what they know of it; one that holds it
            may take it again.

    >>> from obstore.store import MemoryStore
    >>> bucket = ObjectBlobs(BucketUrl("s3", "b", ""), BucketOptions(), store=MemoryStore())
    >>> bucket.put_if_absent("logs/1", b"mine"), bucket.put_if_absent("logs/1", b"theirs")
    (True, False)
    >>> bucket.read("logs/1"), bucket.read("logs/2"), bucket.names("logs")
    (b'mine', None, ['logs/1'])
    """

    far = True

    def __init__(
        self,
        url: BucketUrl,
        options: BucketOptions,
        *,
        subject: str = "checkpoint",
        store: Any = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        turns: Callable[[], AbstractContextManager[object]] = threading.RLock,
    ) -> None:
        self.url = url
        self.where = str(url)
        self.turns = turns
        self.options = options
        self._subject = subject
        if store is None:
            store = connect(url, options, retries=False, subject=subject)
            transfers = connect(url, options, retries=True, subject=subject)
        else:
            transfers = store
        self._store = store
        # Parts of an upload, and a download under way, may be repeated: nobody sees them.
        self._transfers = transfers
        self._clock = clock
        self._sleep = sleep
        self._pool: ThreadPoolExecutor | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See :meth:`millrace.store.Blobs.put_if_absent`. Cost: a PUT."""

        def attempt() -> bool:
            try:
                self._store.put(name, data, mode="create", use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                stored = self._get(name)
                if stored is None:
                    # S3 answers 409 to one of two writers at a time, and takes neither's word.
                    raise TakenByNothing from None
                return stored == data
            return True

        return self._tried("put", name, attempt, CheckpointUnwritable)

    def is_exclusive(self, name: str, data: bytes) -> bool:
        """Return whether the store refuses to put an object again that is there.

        Args:
            name: Of an object that is there.
            data: Its content, so that nothing is lost where the store does not.
        """

        def attempt() -> bool:
            try:
                self._store.put(name, data, mode="create", use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return True
            return False

        return self._tried("put", name, attempt, CheckpointUnwritable)

    def appender(self, name: str) -> PieceAppender:
        """See :meth:`millrace.store.Blobs.appender`. Cost: a PUT for each call."""
        return PieceAppender(self, name)

    def read(self, name: str) -> bytes | None:
        """See :meth:`millrace.store.Blobs.read`. Cost: a GET."""
        return self._tried("get", name, lambda: self._get(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes | None:
        """See :meth:`millrace.store.Blobs.read_range`. Cost: a GET."""

        def attempt() -> bytes | None:
            try:
                return bytes(self._store.get_range(name, start=start, end=stop))
            except FileNotFoundError as error:
                refuse_missing_bucket(error)
                return None
            except exceptions.BaseError as error:
                if is_beyond_the_end(error):
                    return b""
                raise

        return self._tried("get", name, attempt)

    def read_range_of(self, name: str, start: int, stop: int, e_tag: str) -> bytes | None:
        """Return bytes of an object as it was; None if it is gone, or another. Cost: a GET.

        Args:
            name: Its name.
            start: The first byte.
            stop: The byte after the last; not beyond its end.
            e_tag: As its :meth:`head` says.
        """

        def attempt() -> bytes | None:
            options = {"range": (start, stop), "if_match": e_tag}
            try:
                return bytes(self._store.get(name, options=options).bytes())
            except FileNotFoundError as error:
                refuse_missing_bucket(error)
                return None
            except exceptions.PreconditionError:
                return None

        return self._tried("get", name, attempt)

    def exists(self, name: str) -> bool:
        """See :meth:`millrace.store.Blobs.exists`. Cost: a HEAD."""
        return self._size_of(name) is not None

    def _size_of(self, name: str) -> int | None:
        """Return the bytes of an object; None if there is none."""
        known = self.head(name)
        return None if known is None else int(known["size"])

    def head(self, name: str) -> Any | None:
        """Return obstore's ``ObjectMeta`` of an object; None if there is none. Cost: a HEAD."""

        def attempt() -> Any | None:
            try:
                known = self._store.head(name)
            except FileNotFoundError:
                return None
            if known.get("e_tag", "") is None:  # a store that takes puts tells the tags of all
                self._refuse_page()
            return known

        return self._tried("head", name, attempt)

    def copy(self, name: str, to: str) -> None:
        """Copy an object within the bucket, in place of one that may be there. Cost: a PUT.

        Raises:
            FileNotFoundError: There is no such object.
            StoreError: The bucket cannot be reached, or refuses it.
        """

        def attempt() -> bool:
            try:
                self._store.copy(name, to)
            except FileNotFoundError as error:
                refuse_missing_bucket(error)
                return False
            return True

        if not self._tried("copy", name, attempt, CheckpointUnwritable):
            raise FileNotFoundError(f"{self.url}/{name}")

    def names(self, folder: str) -> list[str]:
        """See :meth:`millrace.store.Blobs.names`. Cost: a LIST for each 1,000, or one and a GET."""
        return sorted(entry["path"] for entry in self._listed(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """See :meth:`millrace.store.Blobs.sizes`. Cost: that of :meth:`names`."""
        return {entry["path"]: entry["size"] for entry in self._listed(folder)}

    def size(self, folder: str) -> int:
        """Return the bytes of the objects in a folder and below; at the cost of its names."""
        return sum(entry["size"] for entry in self._listed(folder))

    def any_name(self) -> str | None:
        """Return the name of some object under the prefix, None when there is none."""

        def attempt() -> str | None:
            pages = self._store.list(chunk_size=1)
            name = next((entry["path"] for page in pages for entry in page), None)
            if name is None and _is_of_xml(self._store):
                self._refuse_page()
            return name

        return self._tried("list", "", attempt)

    def remove(self, names: Iterable[str], *, durable: bool = False) -> None:
        """See :meth:`millrace.store.Blobs.remove`. Cost: a DELETE each.

        A request for a thousand at a time would be quicker, but has no order.
        """
        for name in names:
            self._tried("delete", name, lambda: self._delete(name), CheckpointUnwritable)  # noqa: B023

    def map(self, call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
        """See :meth:`millrace.store.Blobs.map`. When it raises, no request is under way."""
        if len(items) < 2 or self.options.requests == 1:
            return [call(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.options.requests, "millrace-bucket")
        futures = [self._pool.submit(call, item) for item in items]
        wait(futures)
        return [future.result() for future in futures]

    def put_pieces(self, name: str, pieces: Iterable[bytes]) -> bool:
        """See :meth:`millrace.store.Blobs.put_pieces`. Cost: a HEAD, and a PUT for each 8 MiB."""
        if self.exists(name):
            return False
        put = 0

        def counted() -> Iterator[bytes]:
            nonlocal put
            for piece in pieces:
                put += len(piece)
                yield piece

        try:
            self._upload(name, counted())
        except CheckpointUnwritable:
            # The answer to what ended the upload was lost, say: asked for that again, a store knows
            # the upload no more. An object is there whole or not.
            if self._size_of(name) != put:
                raise
        return True

    def replace(self, name: str, data: bytes) -> None:
        """See :meth:`millrace.store.Blobs.replace`. Cost: a PUT for each 8 MiB."""
        self._upload(name, [data])

    def _upload(self, name: str, pieces: Iterable[bytes]) -> None:
        """Put an object of any size, in place of one that is there; it is there whole or not.

        Raises:
            CheckpointUnwritable: Nothing was put.
        """
        pieces = iter(pieces)
        head: list[bytes] = []
        size = 0
        while size < _UPLOAD_WHOLE_BYTES and (piece := next(pieces, None)) is not None:
            head.append(piece)
            size += len(piece)
        if size < _UPLOAD_WHOLE_BYTES:
            data = b"".join(head)
            self._tried(
                "put",
                name,
                lambda: self._store.put(name, data, use_multipart=False),
                CheckpointUnwritable,
            )
            return
        try:
            self._transfers.put(
                name, itertools.chain(head, pieces),
                use_multipart=True, chunk_size=_UPLOAD_WHOLE_BYTES, max_concurrency=2,
            )  # fmt: skip
        # Not found: the upload, where it was to be given up after another error, and was already.
        except (exceptions.BaseError, FileNotFoundError) as error:
            trouble = diagnose(error, self.url)
        else:
            return
        raise self._error("put", name, trouble, CheckpointUnwritable)

    def stream(self, name: str) -> Iterator[bytes] | None:
        """See :meth:`millrace.store.Blobs.stream`. Cost: a GET."""

        def attempt() -> Iterator[bytes] | None:
            try:
                answer = self._transfers.get(name)
            except FileNotFoundError as error:
                refuse_missing_bucket(error)
                return None
            return iter(answer.stream(min_chunk_size=_DOWNLOAD_PIECE_BYTES))  # type: ignore[no-any-return]

        pieces = self._tried("get", name, attempt)
        return None if pieces is None else self._drawn(name, pieces)

    def _drawn(self, name: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        while True:
            try:
                piece = bytes(next(pieces))
            except StopIteration:
                return
            except _REFUSALS as error:
                trouble = diagnose(error, self.url)
            else:
                yield piece
                continue
            raise self._error("get", name, trouble, StoreError)

    def entries(self, folder: str, *, deep: bool) -> tuple[list[Any], list[str]]:
        """Return obstore's ``ObjectMeta`` of the objects in a folder, and its folders.

        Args:
            folder: Its name; empty for the prefix.
            deep: Whether the objects of its folders are among them; then no folder is said.
        """
        if deep:
            return self._listed(folder), []

        def attempt() -> tuple[list[Any], list[str]]:
            listed = self._transfers.list_with_delimiter(folder or None)
            objects, folders = list(listed["objects"]), list(listed["common_prefixes"])
            self._check_list(len(objects) + len(folders))
            return objects, folders

        return self._tried("list", folder, attempt)

    def _listed(self, folder: str) -> list[Any]:
        def attempt() -> list[Any]:
            pages = self._transfers.list(folder, chunk_size=_LIST_NAMES)
            entries = [entry for page in pages for entry in page]
            self._check_list(len(entries))
            return entries

        return self._tried("list", folder, attempt)

    def _check_list(self, entries: int) -> None:
        """Raise if what is no list was perhaps taken for an empty one, or for an empty rest."""
        if not entries % _LIST_NAMES and _is_of_xml(self._transfers):
            self._refuse_page()

    def _refuse_page(self) -> None:
        """Raise if something else answers in place of the store. Cost: a GET.

        It is asked for an object of which nobody knows: only a store says that it is not there.
        """
        try:
            answer = self._store.get(f"nothing/{uuid4().hex}")
        except (FileNotFoundError, exceptions.PermissionDeniedError):
            return  # a user who may not list what is above the prefix is not told
        kind = answer.attributes.get("Content-Type", "unknown")
        raise ForeignAnswer(kind, _title(bytes(answer.bytes())))

    def _get(self, name: str) -> bytes | None:
        try:
            return bytes(self._store.get(name).bytes())
        except FileNotFoundError as error:
            refuse_missing_bucket(error)
            return None

    def _delete(self, name: str) -> None:
        try:
            self._store.delete(name)
        except FileNotFoundError as error:
            refuse_missing_bucket(error)

    def _tried(
        self,
        verb: str,
        name: str,
        attempt: Callable[[], _Answer],
        kind: type[StoreError] = StoreError,
    ) -> _Answer:
        """Return the answer to a request, made again while what fails may pass."""
        deadline = self._clock() + self.options.retry_for_us / SECOND
        for tries in itertools.count(1):
            try:
                answer = attempt()
            except _REFUSALS as error:
                trouble = diagnose(error, self.url)
            else:
                if tries > 1:
                    _log.info("%s: %s %s succeeded at try %d", self.url, verb, name, tries)
                return answer
            # Outside the handler, so that the client's own words are not attached as the context.
            pause = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2 ** min(tries - 1, 10))
            pause *= random.uniform(0.5, 1)
            if not trouble.passing or self._clock() + pause > deadline:
                raise self._error(verb, name, trouble, kind, tries)
            if tries == 1:
                _log.warning(
                    "%s: %s %s failed: %s. Trying again for up to %d s.",
                    self.url, verb, name, trouble.what, self.options.retry_for_us // SECOND,
                )  # fmt: skip
            self._sleep(pause)
        raise AssertionError("a loop without an end")

    def _error(
        self, verb: str, name: str, trouble: Diagnosis, kind: type[StoreError], tries: int = 1
    ) -> StoreError:
        where = f"{self.url}/{name}".rstrip("/")
        again = f", {tries} times in {self.options.retry_for_us // SECOND} s" if tries > 1 else ""
        return kind(
            f"{self._subject} {where}: {verb} failed{again}: {trouble.what}. What was committed "
            f"before is safe. {trouble.remedy}, and start again with the same checkpoint."
        )
