"""URLs of the collector as Spark opens them: the same folder, and no visible secret."""

import pytest

from celery_rmq_delay.analytics.storage.addresses import Address, address_of, connector_hint
from celery_rmq_delay.exceptions import AnalyticsError
from tests.support.corpus import corpus

KEY, SECRET = "AKIAEXAMPLE", "wJalrXUtnFEMI"
BUCKET = "fs.s3a.bucket.shop."


@corpus(
    "url, found",
    [
        ("/srv/my history/", "/srv/my history"),
        ("/srv/50%20", "/srv/50%20"),
        ("history", "history"),
        ("/", "/"),
        ("file:///srv/my%20history/", "file:///srv/my history"),
        ("s3://shop/history/", "s3a://shop/history"),
        ("s3a://shop/history", "s3a://shop/history"),
        ("s3://shop", "s3a://shop"),
        ("gs://shop/history?retry_limit_seconds=60", "gs://shop/history"),
        ("gcs://shop/history", "gs://shop/history"),
        ("abfss://shop@account.dfs.core.windows.net/history", "abfss://shop@account.dfs.core.windows.net/history"),
        ("hdfs://name:8020/history/?replication=2", "hdfs://name:8020/history"),
        ("viewfs://cluster/history", "viewfs://cluster/history"),
        ("wasbs://shop@account.blob.core.windows.net/history", "wasbs://shop@account.blob.core.windows.net/history"),
    ],
)
def test_the_url_for_hadoop_names_the_same_folder(url, found):
    assert address_of(url) == Address(found)


def test_options_in_a_url_of_s3_become_settings_of_its_bucket():
    query = "region=eu-west-1&scheme=http&endpoint_override=127.0.0.1:9000&allow_bucket_creation=true"
    found = address_of(f"s3://{KEY}:wJalr%2FXUtnFEMI@shop/history?{query}")
    assert found.url == "s3a://shop/history"
    assert found.settings == {
        f"{BUCKET}access.key": KEY,
        f"{BUCKET}secret.key": "wJalr/XUtnFEMI",
        f"{BUCKET}endpoint.region": "eu-west-1",
        f"{BUCKET}endpoint": "http://127.0.0.1:9000",
        f"{BUCKET}path.style.access": "true",
        f"{BUCKET}connection.ssl.enabled": "false",
    }
    assert KEY not in repr(found)


def test_a_key_of_azure_becomes_a_setting_of_its_account():
    found = address_of(f"abfs://shop:{SECRET}%3D@account.dfs.core.windows.net/history")
    assert found.url == "abfs://shop@account.dfs.core.windows.net/history"
    assert found.settings == {"fs.azure.account.key.account.dfs.core.windows.net": f"{SECRET}="}


@corpus(
    "url, error",
    [
        (f"s3://{KEY}:{SECRET}@shop/history?tls_ca_file_path=/ca", "'tls_ca_file_path' in its query"),
        (f"s3://shop/history?secret_key={SECRET}", "'secret_key' in its query"),
        (f"s3://{KEY}:{SECRET}/with-slash@shop/history", "a slash as %2F"),
        (f"s3://{KEY}:{SECRET}?with-mark@shop/history", "in its query"),
        (f"gs://{KEY}:{SECRET}@shop/history", "fs.gs.auth.type"),
        (f"gs://shop/history?endpoint_override={SECRET}", "'endpoint_override' in its query"),
        (f"abfs://account:{SECRET}@shop/history", "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER"),
        (f"abfs://shop@account.dfs.core.windows.net/history?sas_token={SECRET}", "'sas_token' in its query"),
        (f"hdfs://{SECRET}@name:8020/history", "HADOOP_USER_NAME"),
        (f"wasbs://shop:{SECRET}@account/history", "has a password"),
        (f"oss://shop/history?key={SECRET}", "has a query"),
        (f"s3://{KEY}:{SECRET}[@shop/history", "is not a URL"),
    ],
)
def test_options_that_hadoop_does_not_have_are_refused_and_no_secret_is_shown(url, error):
    with pytest.raises(AnalyticsError) as raised:
        address_of(url)
    assert error in str(raised.value)
    assert SECRET not in str(raised.value)
    assert KEY not in str(raised.value)


@corpus(
    "url, error, package",
    [
        ("s3a://shop/h", "java.lang.ClassNotFoundException: Class org...S3AFileSystem not found", "cloud_2.13:4.0.1"),
        ("abfss://shop@a/h", "ClassNotFoundException: Class org...SecureAzure not found", "cloud_2.13:4.0.1"),
        ("gs://shop/h", 'No FileSystem for scheme "gs"', "gcs-connector:VERSION"),
        ("oss://shop/h", 'No FileSystem for scheme "oss"', "GROUP:NAME:VERSION"),
    ],
)
def test_a_connector_that_is_missing_is_named(url, error, package):
    hint = connector_hint(url, error, "4.0.1")
    assert hint is not None
    assert hint.endswith(package)
    assert connector_hint(url, "connection refused", "4.0.1") is None


@corpus("place", ["/srv/h[1]", "file:///srv/a%7Bb%7D", "s3://shop/h*", "hdfs://[::1]:8020/a\\b"])
def test_a_folder_that_spark_takes_for_a_pattern_is_refused(place):
    with pytest.raises(AnalyticsError, match="which Spark takes for a pattern of names"):
        address_of(place)
    assert address_of("hdfs://[::1]:8020/history").url == "hdfs://[::1]:8020/history"
