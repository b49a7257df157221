"""What a client is told when a store fails, and what it never repeats."""

from __future__ import annotations

import itertools
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from obstore import exceptions
from obstore.store import MemoryStore, S3Store

from millrace.model.errors import PipelineError, StoreError
from millrace.store import BucketOptions, BucketUrl, ObjectBlobs
from millrace.store.object_blobs import diagnose

S3 = BucketUrl.parse("s3://bucket/c")


@pytest.mark.parametrize(
    ("text", "what", "passing", "remedy"),
    [
        ("status code: 503 Slow Down: <Code>SlowDown</Code>", "503 SlowDown", True, "status says"),
        ("status code: 429 Too Many Requests", "429", True, "status says"),
        ("status code: 404: <Code>NoSuchBucket</Code>", "404 NoSuchBucket", False, "'bucket'"),
        ("status code: 400: <Code>ExpiredToken</Code>", "400 ExpiredToken", False, "credentials"),
        ("status code: 400: <Code>RequestTimeout</Code>", "RequestTimeout", True, "status says"),
        ("status code: 400: <Code>BadDigest</Code>", "BadDigest", True, "status says"),
        ("status code: 400: <Code>Throttling</Code>", "Throttling", True, "status says"),
        ("status code: 400: <Code>InvalidRequest</Code>", "400", False, "documentation"),
        ("status code: 403: <Code>RequestTimeTooSkewed</Code>", "Skewed", False, "the clock"),
        ("status code: 400 Bad Request", "400", False, "credentials"),
        ("status code: 301 Moved", "301", False, "AWS_REGION"),
        ("status code: 501", "501", False, "conditional puts"),
        ("PUT http://169.254.169.254/latest/api/token", "no credentials", False, "AWS_* variables"),
        ("kind: Timeout, source: TimedOut", "no answer in time", True, "MILLRACE_OBJECT_TIMEOUT"),
        ("tcp connect error", "it cannot be reached", True, "AWS_ENDPOINT_URL"),
        ("source: BadScheme", "not encrypted", False, "AWS_ALLOW_HTTP=true"),
    ],
)
def test_troubles(text: str, what: str, passing: bool, remedy: str) -> None:
    trouble = diagnose(exceptions.GenericError(text), S3)
    assert what in trouble.what
    assert trouble.passing is passing
    assert remedy in trouble.remedy


@pytest.mark.parametrize(
    ("url", "variables", "remedy"),
    [
        ("az://c/p", {}, "AZURE_STORAGE_ACCOUNT_NAME is not set"),
        ("az://c/p", {"AZURE_STORAGE_ACCOUNT_KEY": "SECRET!"}, "_KEY is no base64"),
        ("az://c/p", {"AZURE_STORAGE_ENDPOINT": "SECRET"}, r"one of the AZURE_\* variables"),
        ("az://c/p", {"AZURE_STORAGE_USE_EMULATOR": "SECRET"}, "neither true nor false"),
        ("gs://b/p", {"GOOGLE_SERVICE_ACCOUNT_KEY": "SECRET"}, "holds no credentials"),
        ("gs://b/p", {"GOOGLE_APPLICATION_CREDENTIALS": "/no/SECRET"}, "cannot be read"),
        ("s3://b/p", {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "SECRET"}, "neither true nor false"),
    ],
)
def test_variables_that_make_no_client_are_refused_and_not_repeated(
    url: str, variables: dict[str, str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    account = {"AZURE_STORAGE_ACCOUNT_NAME": "account"} if variables else {}
    for name, value in (account | variables).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PipelineError, match=f"checkpoint {url}: .*{remedy}") as caught:
        ObjectBlobs(BucketUrl.parse(url), BucketOptions())
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_remedies_are_in_the_words_of_the_store() -> None:
    container = diagnose(
        exceptions.GenericError("status code: 404: <Code>ContainerNotFound</Code>"),
        BucketUrl.parse("az://logs/c"),
    )
    assert container.remedy == "Make the container 'logs', or correct its name"
    away = exceptions.GenericError("tcp connect error")
    assert "AZURE_ENDPOINT if" in diagnose(away, BucketUrl.parse("az://logs/c")).remedy
    assert "GOOGLE_BASE_URL if" in diagnose(away, BucketUrl.parse("gs://logs/c")).remedy


def test_the_signature_in_an_azure_url_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of a real request, nor where the client would put it into its message."""
    for name, value in {
        "ACCOUNT_NAME": "account",
        "SAS_KEY": "sv=2024-11-04&sig=c2VjcmV0",
        "ENDPOINT": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    now = itertools.count(step=30)
    bucket = ObjectBlobs(
        BucketUrl.parse("az://container/c"),
        BucketOptions(),
        clock=lambda: float(next(now)),
        sleep=lambda _: None,
    )
    with caplog.at_level(0), pytest.raises(StoreError, match="cannot be reached") as caught:
        bucket.read("FORMAT")
    said = "".join(traceback.format_exception(caught.value)) + caplog.text

    def refused() -> None:
        raise exceptions.GenericError("GET https://account/c?sig=c2VjcmV0 - status code: 403")

    with caplog.at_level(0), pytest.raises(StoreError, match="403") as caught:
        bucket._tried("get", "FORMAT", refused)
    said += "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "Trying again for up to 120 s" in said
    assert "c2VjcmV0" not in said
    assert "sig=" not in said


def test_a_pause_grows_up_to_five_seconds_and_ends_in_time() -> None:
    pauses: list[float] = []
    bucket = ObjectBlobs(
        S3,
        BucketOptions(),
        store=MemoryStore(),
        clock=lambda: sum(pauses),
        sleep=pauses.append,
    )

    def refused() -> None:
        raise exceptions.GenericError("status code: 500")

    with pytest.raises(StoreError, match=r"get failed, \d\d times in 120 s: 500"):
        bucket._tried("get", "slot", refused)
    assert 0.05 <= pauses[0] <= 0.1
    assert all(2.5 <= pause <= 5 for pause in pauses[6:])
    assert 115 <= sum(pauses) <= 120


class LoginPage(BaseHTTPRequestHandler):
    """Answers all that is asked with 200, as a proxy that wants a login; or with a store's list."""

    page = b"<html><head><title>Sign in, please</title></head><body>?sig=c2VjcmV0</body></html>"
    listed = b""

    def do_GET(self) -> None:
        data = self.listed if b"list-type" in self.path.encode() and self.listed else self.page
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectBlobs]:
    monkeypatch.setattr(LoginPage, "listed", b"")
    with ThreadingHTTPServer(("127.0.0.1", 0), LoginPage) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        store = S3Store(
            "bucket",
            endpoint=f"http://127.0.0.1:{server.server_port}",
            access_key_id="a",
            secret_access_key="b",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        yield ObjectBlobs(S3, BucketOptions(retry_for_us=0), store=store)
        server.shutdown()


@pytest.mark.parametrize(
    "ask",
    [
        lambda blobs: blobs.names("commits"),
        lambda blobs: blobs.sizes("commits"),
        lambda blobs: blobs.entries("commits", deep=False),
        lambda blobs: blobs.any_name(),
        lambda blobs: blobs.exists("incarnations/00000001.begun"),
    ],
)
def test_a_login_page_is_no_answer_of_the_store(
    behind_a_proxy: ObjectBlobs, ask: Callable[[ObjectBlobs], object]
) -> None:
    what = r"200, and a page of type text/html with the title 'Sign in, please', .*AWS_ENDPOINT_URL"
    with pytest.raises(StoreError, match=what) as refused:
        ask(behind_a_proxy)
    assert "sig=" not in str(refused.value)


def test_a_login_page_is_no_rest_of_a_long_list(
    behind_a_proxy: ObjectBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = (
        "<Contents><Key>c/{}</Key><LastModified>2013-02-08T01:02:03.000Z</LastModified>"
        '<ETag>"0"</ETag><Size>1</Size></Contents>'
    )
    for count in (999, 1000):
        entries = "".join(map(entry.format, range(count)))
        listed = f"<ListBucketResult>{entries}</ListBucketResult>"
        monkeypatch.setattr(LoginPage, "listed", listed.encode())
        if count == 999:
            assert len(behind_a_proxy.names("c")) == 999
        else:
            with pytest.raises(StoreError, match="no store's answer"):
                behind_a_proxy.names("c")
