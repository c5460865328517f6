"""Log lines of standard input to the door `otlp` by the OpenTelemetry SDK."""

import logging
import os
import sys

from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

logging.basicConfig()  # the SDK logs what it sends again and what it drops

exporter = OTLPLogExporter(
    # http(s)://HOST:PORT of a gateway or its load balancer
    endpoint=f"{os.environ['SLUICE_URL']}/v1/logs",
    headers={"Authorization": f"Bearer {os.environ['SLUICE_TOKEN']}"},
    compression=Compression.Gzip,
    timeout=120,  # seconds; the exporter drops a request after this time, or after six attempts
)
provider = LoggerProvider(resource=Resource.create({"service.name": "shop"}))
provider.add_log_record_processor(
    BatchLogRecordProcessor(
        exporter,
        max_queue_size=1_000_000,  # records that do not fit are dropped
        max_export_batch_size=512,
        schedule_delay_millis=500,
    )
)

logger = provider.get_logger("shop")
for line in sys.stdin:
    logger.emit(
        severity_text="INFO",
        severity_number=SeverityNumber.INFO,
        body=line.rstrip("\n"),
    )
provider.shutdown()
