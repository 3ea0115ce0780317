"""URLs of the history in Spark: the folder of the collector, with its keys, which are never shown."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from celery_rmq_delay.analytics.storage.files import Storage, hadoop_configuration
from celery_rmq_delay.exceptions import AnalyticsError

SECRET = "wJalrXUtnFEMI"


def test_keys_of_a_url_reach_hadoop_and_a_missing_connector_is_named(spark: SparkSession) -> None:
    with pytest.raises(AnalyticsError) as raised:
        Storage(spark, f"s3://AKIAEXAMPLE:{SECRET}@shop/history?region=eu-west-1&endpoint_override=127.0.0.1:9")
    assert str(raised.value).startswith("s3a://shop/history: Spark has no connector for s3a:// here: add --conf")
    assert f"spark-hadoop-cloud_2.13:{spark.version}" in str(raised.value)
    hadoop = hadoop_configuration(spark)
    assert hadoop.get("fs.s3a.bucket.shop.secret.key") == SECRET
    assert hadoop.get("fs.s3a.bucket.shop.endpoint.region") == "eu-west-1"
    jvm: Any = spark._jvm
    java = psutil.Process(jvm.java.lang.ProcessHandle.current().pid()).cmdline()
    assert "org.apache.spark.deploy.SparkSubmit" in java
    assert not [word for word in java if SECRET in word]
