// Logs of a Node program, sent by the OpenTelemetry SDK to the door `otlp` of sluice.
import { createInterface } from "node:readline";
import { diag, DiagConsoleLogger, DiagLogLevel } from "@opentelemetry/api";
import { OTLPLogExporter } from "@opentelemetry/exporter-logs-otlp-proto";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BatchLogRecordProcessor, LoggerProvider } from "@opentelemetry/sdk-logs";

// Without it, a batch that is lost is not reported.
diag.setLogger(new DiagConsoleLogger(), DiagLogLevel.ERROR);

const exporter = new OTLPLogExporter({
  url: `${process.env.SLUICE_URL}/v1/logs`, // http(s)://HOST:PORT of a gateway or its load balancer
  headers: { Authorization: `Bearer ${process.env.SLUICE_TOKEN}` },
  timeoutMillis: 120_000, // the exporter drops a request after this time, or after six attempts
});
const provider = new LoggerProvider({
  resource: resourceFromAttributes({ "service.name": "shop" }),
  processors: [
    new BatchLogRecordProcessor({
      exporter,
      maxQueueSize: 1_000_000, // records that do not fit are dropped
      maxExportBatchSize: 512,
      scheduledDelayMillis: 500,
      exportTimeoutMillis: 120_000,
    }),
  ],
});

const logger = provider.getLogger("shop");
for await (const line of createInterface({ input: process.stdin })) {
  logger.emit({ severityText: "INFO", severityNumber: 9, body: line });
}
await provider.shutdown();
