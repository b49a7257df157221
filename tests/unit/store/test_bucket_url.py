from __future__ import annotations

import pytest

from millrace.model.errors import PipelineError
from millrace.model.time import MINUTE, SECOND
from millrace.store import BucketOptions, BucketUrl, is_object_store


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("s3://b/c", ("s3", "b", "c")),
        ("S3://my-bucket.1/a//", ("s3", "my-bucket.1", "a")),
        ("gs://b", ("gs", "b", "")),
        ("az://container/check point/ü", ("az", "container", "check point/ü")),
    ],
)
def test_urls(text: str, parts: tuple[str, str, str]) -> None:
    assert is_object_store(text)
    url = BucketUrl.parse(text)
    assert (url.scheme, url.bucket, url.prefix) == parts
    assert BucketUrl.parse(str(url)) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3a://b/c", r"Write s3://bucket/prefix\."),
        ("S3N://b/c", r"Write s3://bucket/prefix\."),
        ("gcs://b", r"Write gs://bucket/prefix\."),
        ("abfss://c@account.dfs.core.windows.net/d", r"Write az://container/prefix\."),
    ],
)
def test_the_spelling_of_other_programs(text: str, message: str) -> None:
    assert is_object_store(text)
    with pytest.raises(PipelineError, match=message):
        BucketUrl.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://KEY:SECRET@bucket/c",
        "s3://SECRET@bucket/c",
        "az://container/c?sv=1&sig=SECRET",
        "s3:///SECRET",
        "gs://bucket/c#SECRET",
    ],
)
def test_what_may_be_a_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(PipelineError, match="do not belong into the URL") as caught:
        BucketUrl.parse(text)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("text", ["s3://b/a//b", "s3://b/a/../b", "s3://b/./a"])
def test_a_prefix_is_taken_as_it_is(text: str) -> None:
    with pytest.raises(PipelineError, match="a part of the prefix is empty"):
        BucketUrl.parse(text)


def test_options() -> None:
    assert BucketOptions.from_environment({}) == BucketOptions()
    given = {
        "MILLRACE_OBJECT_TIMEOUT": "10 s",
        "MILLRACE_OBJECT_RETRY_FOR": "5 min",
        "MILLRACE_OBJECT_REQUESTS": "64",
    }
    assert BucketOptions.from_environment(given) == BucketOptions(10 * SECOND, 5 * MINUTE, 64)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MILLRACE_OBJECT_TIMEOUT", "soon"),
        ("MILLRACE_OBJECT_TIMEOUT", "0 s"),
        ("MILLRACE_OBJECT_RETRY_FOR", ""),
        ("MILLRACE_OBJECT_REQUESTS", "0"),
        ("MILLRACE_OBJECT_REQUESTS", "many"),
    ],
)
def test_options_without_sense(name: str, text: str) -> None:
    with pytest.raises(PipelineError, match=f"{name}='{text}': expected a"):
        BucketOptions.from_environment({name: text})
