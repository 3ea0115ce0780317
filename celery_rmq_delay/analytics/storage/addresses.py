"""Translate ``HISTORY_URL`` from pyarrow's form, used by the collector, into Hadoop's, used by Spark. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ...exceptions import AnalyticsError
from ...history.url import scheme_of, shown

#: Characters of a path that Hadoop takes for a pattern.
PATTERN = re.compile(r"[*\[\]{}\\]")
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")

#: Query parameters for pyarrow that Hadoop does not need: Hadoop creates no buckets.
_S3_LEFT_OUT = {"allow_bucket_creation", "allow_bucket_deletion", "check_directory_existence_before_creation"}
_S3_USED = {"region", "scheme", "endpoint_override"}

_HADOOP_CLOUD = "org.apache.spark:spark-hadoop-cloud_2.13:{spark}"
_CONNECTORS = {
    "s3a": _HADOOP_CLOUD,
    "abfs": _HADOOP_CLOUD,
    "abfss": _HADOOP_CLOUD,
    "gs": "com.google.cloud.bigdataoss:gcs-connector:VERSION",
}


@dataclass(frozen=True)
class Address:
    """A folder as Hadoop opens it: ``url`` without secrets; ``settings`` (``fs.*``) from the rest of the URL."""

    url: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


def address_of(url: str) -> Address:
    """Return the Hadoop address of a pyarrow URL or a path.

    S3 settings apply only to the URL's bucket, so that a history and an output may have different keys. URLs of schemes
    that only Hadoop supports are unchanged. Raises `AnalyticsError`, which shows no secret, for parts of the URL
    without an equivalent in Hadoop.
    """
    url = url.strip()
    scheme = scheme_of(url)
    if scheme is None:
        return _plain(Address(url.rstrip("/") or url), url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise AnalyticsError(f"{shown(url)}: is not a URL. Write one such as s3://bucket/history.") from error
    address = _PARSERS.get(scheme.lower(), _as_it_is)(url, parts)
    return _plain(address, address.url.partition("://")[2].partition("/")[2])


def _plain(address: Address, path: str) -> Address:
    """Return the address if Spark takes its path as it is."""
    if found := PATTERN.search(path):
        raise AnalyticsError(
            f"{address.url}: contains {found[0]!r}, which Spark takes for a pattern of names. Use another folder."
        )
    return address


def connector_hint(url: str, error: str, spark: str) -> str | None:
    """Return a hint naming the missing package for Spark's version, if Hadoop's ``error`` is about that; else None."""
    if "ClassNotFoundException" not in error and "No FileSystem for scheme" not in error:
        return None
    scheme = url.partition("://")[0]
    package = _CONNECTORS.get(scheme, "GROUP:NAME:VERSION").format(spark=spark)
    return f"Spark has no connector for {scheme}:// here: add --conf spark.jars.packages={package}"


def _s3(url: str, parts: SplitResult) -> Address:
    used = _query(url, parts, _S3_USED, _S3_LEFT_OUT)
    bucket = _bucket(url, parts)
    settings = {}
    if parts.username or parts.password:
        settings["access.key"] = unquote(parts.username or "")
        settings["secret.key"] = unquote(parts.password or "")
    if region := used.get("region"):
        settings["endpoint.region"] = region
    scheme = used.get("scheme", "https")
    if endpoint := used.get("endpoint_override"):
        settings["endpoint"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        settings["path.style.access"] = "true"
    if scheme == "http":
        settings["connection.ssl.enabled"] = "false"
    named = {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}
    return Address(f"s3a://{bucket}{_path(parts)}", named)


def _gs(url: str, parts: SplitResult) -> Address:
    _query(url, parts, set(), {"retry_limit_seconds", "default_bucket_location"})
    if "@" in parts.netloc:
        raise _refused(url, "a user", "Set the credentials with --conf spark.hadoop.fs.gs.auth.type")
    return Address(f"gs://{_bucket(url, parts)}{_path(parts)}")


def _abfs(url: str, parts: SplitResult) -> Address:
    _query(url, parts, set(), set())
    who, _, host = parts.netloc.rpartition("@")
    container, _, key = who.partition(":")
    if not container or not host.endswith(".dfs.core.windows.net"):
        raise _refused(url, "another form", "Write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER")
    settings = {f"fs.azure.account.key.{host}": unquote(key)} if key else {}
    return Address(f"{parts.scheme}://{container}@{host}{_path(parts)}", settings)


def _hdfs(url: str, parts: SplitResult) -> Address:
    _query(url, parts, set(), {"replication"})
    if "@" in parts.netloc:
        raise _refused(url, "a user", "Leave it out, and name the user in HADOOP_USER_NAME")
    return Address(f"{parts.scheme}://{parts.netloc}{_path(parts)}")


def _as_it_is(url: str, parts: SplitResult) -> Address:
    if parts.query or parts.password:
        raise _refused(url, "a query" if parts.query else "a password", "Set it with --conf spark.hadoop.fs.…")
    return Address(url.rstrip("/"))


_PARSERS: Mapping[str, Callable[[str, SplitResult], Address]] = {
    "s3": _s3, "s3a": _s3, "s3n": _s3, "gs": _gs, "gcs": _gs, "abfs": _abfs, "abfss": _abfs, "hdfs": _hdfs,
    "viewfs": _hdfs, "file": lambda url, parts: Address(f"file://{_path(parts) or '/'}"),
}  # fmt: skip


def _query(url: str, parts: SplitResult, used: set[str], left_out: set[str]) -> dict[str, str]:
    found = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in found:
        if name not in used | left_out:
            raise _refused(url, f"{shown(name)!r} in its query", "Set it with --conf spark.hadoop.fs.…")
    return {name: value for name, value in found.items() if name in used}


def _bucket(url: str, parts: SplitResult) -> str:
    bucket = parts.netloc.rpartition("@")[2]
    if not _BUCKET.fullmatch(bucket):
        raise AnalyticsError(
            f"{shown(url)}: names no bucket. In a password, write a slash as %2F and a question mark as %3F."
        )
    return bucket


def _path(parts: SplitResult) -> str:
    """Return the path as pyarrow decodes it: Hadoop does not decode ``%20``."""
    return unquote(parts.path).rstrip("/")


def _refused(url: str, what: str, hint: str) -> AnalyticsError:
    return AnalyticsError(f"{shown(url)}: has {what}, which Spark does not support in a URL. {hint}.")
