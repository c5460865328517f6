// Package s3exporter stores each OTLP request as one object, with the steps of awss3exporter:
// marshal, and one upload by the manager of the AWS SDK. There is no queue, so the response to the
// client follows the upload.
package s3exporter

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/pdata/plog"
)

// Config names the bucket and the form of the objects.
type Config struct {
	Endpoint  string `mapstructure:"endpoint"`
	Region    string `mapstructure:"region"`
	Bucket    string `mapstructure:"s3_bucket"`
	Marshaler string `mapstructure:"marshaler"`
}

// NewFactory returns the factory that the builder registers.
func NewFactory() exporter.Factory {
	return exporter.NewFactory(
		component.MustNewType("s3"),
		func() component.Config { return &Config{Region: "us-east-1", Marshaler: "otlp_json"} },
		exporter.WithLogs(newLogs, component.StabilityLevelDevelopment),
	)
}

type uploader struct {
	config    *Config
	marshaler plog.Marshaler
	manager   *manager.Uploader
}

func newLogs(ctx context.Context, set exporter.Settings, raw component.Config) (exporter.Logs, error) {
	made := &uploader{config: raw.(*Config), marshaler: &plog.JSONMarshaler{}}
	if made.config.Marshaler == "otlp_proto" {
		made.marshaler = &plog.ProtoMarshaler{}
	}
	loaded, err := config.LoadDefaultConfig(ctx, config.WithRegion(made.config.Region))
	if err != nil {
		return nil, err
	}
	client := s3.NewFromConfig(loaded, func(options *s3.Options) {
		options.BaseEndpoint = aws.String(made.config.Endpoint)
		options.UsePathStyle = true
	})
	made.manager = manager.NewUploader(client)
	return exporterhelper.NewLogs(ctx, set, raw, made.push)
}

func (u *uploader) push(ctx context.Context, logs plog.Logs) error {
	content, err := u.marshaler.MarshalLogs(logs)
	if err != nil {
		return err
	}
	_, err = u.manager.Upload(ctx, &s3.PutObjectInput{
		Bucket: aws.String(u.config.Bucket),
		Key:    aws.String(fmt.Sprintf("logs_%s", rand.Text())),
		Body:   bytes.NewBuffer(content),
	})
	return err
}
