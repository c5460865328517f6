module sluice.test/s3exporter

go 1.25

require (
	github.com/aws/aws-sdk-go-v2 v1.45.1
	github.com/aws/aws-sdk-go-v2/config v1.33.1
	github.com/aws/aws-sdk-go-v2/feature/s3/manager v1.22.0
	github.com/aws/aws-sdk-go-v2/service/s3 v1.109.1
	go.opentelemetry.io/collector/component v1.56.0
	go.opentelemetry.io/collector/exporter v1.56.0
	go.opentelemetry.io/collector/exporter/exporterhelper v0.150.0
	go.opentelemetry.io/collector/pdata v1.56.0
)
