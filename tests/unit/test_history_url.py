"""Places of history files; secrets in such URLs are not shown."""

import pytest

from celery_rmq_delay.exceptions import HistoryError
from celery_rmq_delay.history.url import checked, problem_of, shown, without_secrets
from tests.support.corpus import corpus

KEY, SECRET = "AKIAEXAMPLE", "wJalrXUtnFEMI"


@corpus("url", ["/srv/history", "file:///srv/history", "s3://bucket", "gs://b/h", "hdfs://name:8020/h"])
def test_places_that_pyarrow_opens_are_valid(url):
    assert problem_of(url) is None
    assert checked(url) == url
    assert shown(url) == url


@corpus(
    "url, error",
    [
        *((url, "has to be absolute") for url in ("history", "./history", "~/history")),
        *((url, "Write a URL") for url in ("", 7)),
        ("ftp://host/history", "'ftp' is unknown. Known: file, s3"),
        ("file://srv/history", "three slashes"),
        ("/srv/\0", "unprintable characters"),
    ],
)
def test_other_places_are_refused_with_a_fix(url, error):
    with pytest.raises(HistoryError, match="History files: found") as raised:
        checked(url)
    assert error in str(raised.value)


@corpus(
    "url",
    [
        f"s3://{KEY}:{SECRET}@bucket/history",
        f"s3://{KEY}:{SECRET}/with-slash@bucket/history",
        f"s3://{KEY}:{SECRET}?with-mark@bucket/history",
        f"s3://bucket/history?secret_key={SECRET}&access_key={KEY}",
        f"s3://bucket/history?secret_key={SECRET}@more&access_key={KEY}",
        f"ftp://{KEY}:{SECRET}@host/history",
        f"{KEY}:{SECRET}@bucket/history",
    ],
)
def test_no_secret_is_shown(url):
    error = f"ArrowInvalid: Cannot parse URI: '{url}' (key {KEY}, secret {SECRET}) for bucket/history"
    for text in (shown(url), without_secrets(error, url)):
        assert KEY not in text
        assert SECRET not in text
    assert "Cannot parse URI" in without_secrets(error, url)


def test_parts_of_an_error_that_are_not_secret_stay():
    url = f"s3://{KEY}:{SECRET}@bucket/history?region=eu-west-1&endpoint_override=127.0.0.1:9000"
    error = "OSError: When creating key 'history/x' in bucket 'bucket': no connection to 127.0.0.1 of eu-west-1"
    assert without_secrets(error, url) == error
