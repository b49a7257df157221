"""BucketUrl: which bucket and prefix a checkpoint's URL names, and how it is reached.

A URL holds no secret, and is therefore kept, logged and sent to workers. Credentials, endpoint and
region are read from the environment of each process, or come from the cloud's own chain (instance
metadata, web identity, workload identity), by obstore.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from obstore.store import AzureStore, GCSStore, S3Store

from millrace.model.errors import PipelineError
from millrace.model.time import MINUTE, SECOND, duration_us

_STORES: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}

#: Scheme -> prefix of the variables that its client reads from the environment.
VARIABLES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}

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
    def parse(cls, text: str) -> BucketUrl:
        """Return the parts of a URL.

        Raises:
            PipelineError: It is no URL of a bucket. A message never repeats what may be a secret.
        """
        match = _URL.fullmatch(text)
        scheme = match[1].lower() if match else ""
        if match is None or scheme not in _STORES:
            hint = f" Write {_ALIASES[scheme]}." if scheme in _ALIASES else ""
            raise PipelineError(
                f"checkpoint with scheme {scheme!r}: expected s3://bucket/prefix, gs://bucket/"
                f"prefix or az://container/prefix.{hint}"
            )
        bucket, prefix = match[2], match[3].strip("/")
        if not _BUCKET.fullmatch(bucket) or "?" in prefix or "#" in prefix:
            raise PipelineError(
                f"checkpoint {scheme}://...: expected {scheme}://bucket/prefix, found something "
                "else in the place of the bucket, or a query. Credentials and endpoints do not "
                "belong into the URL, which is logged: set them in the environment of the driver "
                "and of every worker."
            )
        if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
            raise PipelineError(
                f"checkpoint {text!r}: a part of the prefix is empty, '.' or '..'. Write the "
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
        found = os.environ if environment is None else environment
        defaults = cls()
        name = "MILLRACE_OBJECT_REQUESTS"
        requests = found.get(name, str(defaults.requests))
        if not requests.isdecimal() or not 1 <= int(requests) <= 1000:
            raise PipelineError(f"{name}={requests!r}: expected a number from 1 to 1000")
        return cls(
            _duration(found, "MILLRACE_OBJECT_TIMEOUT", defaults.timeout_us),
            _duration(found, "MILLRACE_OBJECT_RETRY_FOR", defaults.retry_for_us),
            int(requests),
        )


def connect(url: BucketUrl, options: BucketOptions, *, retries: bool) -> Any:
    """Return obstore's client for a bucket; names are relative to the prefix.

    Args:
        url: The bucket.
        options: Time-outs.
        retries: Let obstore try again by itself: only for what may be sent twice.
    """
    allow_http = os.environ.get(f"{VARIABLES[url.scheme]}_ALLOW_HTTP", "").lower()
    timeout = timedelta(microseconds=options.timeout_us)
    retry: dict[str, Any] = {"max_retries": 0}
    if retries:
        patience = timedelta(microseconds=options.retry_for_us)
        retry = {"max_retries": 1000, "retry_timeout": patience}
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
