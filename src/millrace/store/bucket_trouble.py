"""Trouble: what an object store's refusal means, whether it passes, and what to do about it.

The client's own messages are long, and what is in them is the client's to change: the URL of an
Azure request, for one, carries the signature of its access token. So nothing of them is passed on
but a status, the store's own error code, and words chosen here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from obstore import exceptions

from millrace.store.bucket_url import VARIABLES, BucketUrl

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_METADATA_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")

_CREDENTIALS = frozenset(
    {
        "AccessDenied", "AuthenticationFailed", "AuthorizationFailure", "ExpiredToken",
        "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
    }
)  # fmt: skip
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"})
_REGION = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)


@dataclass(frozen=True)
class Trouble:
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


def diagnose(error: Exception, url: BucketUrl) -> Trouble:
    """Return what an exception of obstore means."""
    text = str(error)
    status_match, code_match = _STATUS.search(text), _CODE.search(text)
    status = int(status_match[1]) if status_match else 0
    code = code_match[1] if code_match else ""
    what = " ".join(part for part in (str(status or ""), code) if part)
    variables = VARIABLES[url.scheme]
    if isinstance(error, TakenByNothing):
        return Trouble(
            "a put was refused as if the name were taken, and nothing is there", True,
            "See whether something else writes or deletes under the checkpoint's prefix",
        )  # fmt: skip
    if code in _NO_BUCKET:
        return Trouble(what, False, f"Make the bucket {url.bucket!r}, or correct its name")
    if code in _REGION or status == 301:
        return Trouble(what, False, f"Set {variables}_REGION to the region of the bucket")
    if any(host in text for host in _METADATA_HOSTS):
        return Trouble(
            "no credentials in the environment, and none from the cloud's metadata service", False,
            _credentials(variables),
        )  # fmt: skip
    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    if isinstance(error, denied) or status in (401, 403) or code in _CREDENTIALS:
        return Trouble(what or "access denied", False, _credentials(variables))
    if isinstance(error, exceptions.NotSupportedError) or status == 501:
        return Trouble(
            what or "not supported", False,
            "Use a store that has conditional puts (If-None-Match: *), such as Amazon S3",
        )  # fmt: skip
    if "BadScheme" in text:
        return Trouble(
            "the endpoint is http://, which is not encrypted", False,
            f"Use https://, or set {variables}_ALLOW_HTTP=true where the network is yours",
        )  # fmt: skip
    if status in (408, 409, 425, 429) or status >= 500:
        return Trouble(what, True, "See what the store's own status says")
    if status or isinstance(error, exceptions.InvalidPathError | ValueError):
        return Trouble(what or type(error).__name__, False, "See the documentation of the store")
    if "TimedOut" in text or "timed out" in text or "Timeout" in text:
        return Trouble(
            "no answer in time", True,
            "Check the network, or raise MILLRACE_OBJECT_TIMEOUT where it is slow",
        )  # fmt: skip
    reached = "Connect" not in text and "connect" not in text
    return Trouble(
        "no usable answer" if reached else "it cannot be reached", True,
        f"Check the network, and {variables}_ENDPOINT_URL if it is set",
    )  # fmt: skip


def _credentials(variables: str) -> str:
    return (
        "Give the driver and every worker credentials that may read, write, list and delete "
        f"there: the {variables}_* variables of their environment, or a role of the machine"
    )
