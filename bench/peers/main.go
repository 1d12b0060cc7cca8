// Command peers is the OpenTelemetry Collector with no more than what a user needs for what the agent does: an OTLP receiver, an
// OTLP exporter over gRPC and one over HTTP, and a queue on disk. The versus command runs it beside the agent.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry"
	"go.uber.org/zap"
)

func main() {
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "peers", Description: "OpenTelemetry Collector with OTLP and a queue on disk"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			DefaultScheme:     "file",
		}},
	})
	if err := command.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func factories() (f otelcol.Factories, err error) {
	if f.Extensions, err = otelcol.MakeFactoryMap[extension.Factory](filestorage.NewFactory()); err != nil {
		return f, fmt.Errorf("list extensions: %w", err)
	}
	if f.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
		return f, fmt.Errorf("list receivers: %w", err)
	}
	if f.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](otlpexporter.NewFactory(), otlphttpexporter.NewFactory()); err != nil {
		return f, fmt.Errorf("list exporters: %w", err)
	}
	f.Telemetry = warningsOnly()
	return f, nil
}

// warningsOnly is the Collector's own telemetry cut down to its log, from warnings on. The factory that it comes with adds some
// hundred modules to this one, and with its metrics off it does no more.
func warningsOnly() telemetry.Factory {
	return telemetry.NewFactory(func() component.Config { return &struct{}{} },
		telemetry.WithCreateLogger(func(context.Context, telemetry.LoggerSettings, component.Config) (*zap.Logger, component.ShutdownFunc, error) {
			cfg := zap.NewProductionConfig()
			cfg.Level.SetLevel(zap.WarnLevel)
			log, err := cfg.Build()
			return log, nil, err
		}))
}
