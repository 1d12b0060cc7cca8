package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"ingest-agent/agent/config"
)

func newConfig() *cobra.Command {
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Validates a configuration file; touches no data",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := config.Load(args[0], nil, os.LookupEnv)
			if err != nil {
				return usageError(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: good\n", args[0])
			for _, key := range config.Unbuilt(c) {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s has no effect yet\n", args[0], key)
			}
			return nil
		},
	}
	defaults := &cobra.Command{
		Use:   "defaults",
		Short: "Prints every key with its default and one line of help, as a configuration file",
		RunE:  func(cmd *cobra.Command, _ []string) error { return config.WriteDefaults(cmd.OutOrStdout()) },
	}
	return group(&cobra.Command{Use: "config", Short: "Checks a configuration file, or prints the defaults"}, check, defaults)
}

// flagConfig names the configuration file.
const flagConfig = "config"

// overrideFlag is a flag that comes before the file, and its key there.
type overrideFlag struct{ name, key, value, help string }

// overrideFlags are the flags of run that override the file. Each is also an environment variable (envName).
func overrideFlags() []overrideFlag {
	return []overrideFlag{
		{"data-dir", "data_dir", "DIR", "directory of lanes, cursors and dead letters"},
		{"bucket", "bucket.url", "URL", "file:DIR or s3://BUCKET/PREFIX"},
		{"grpc", "receivers.grpc.endpoint", "HOST:PORT", "where OTLP/gRPC comes in"},
		{"http", "receivers.http.endpoint", "HOST:PORT", "where OTLP/HTTP comes in"},
		{"admin", "admin.endpoint", "HOST:PORT", "health, metrics and state"},
		{"destination", config.KeyDestination, "DEST", "[NAME=]file:DIR, [NAME=]otlp-http:URL or [NAME=]otlp-grpc:HOST:PORT; replaces the file's; may be repeated"},
		{"log-level", "log.level", "LEVEL", "debug, info, warn or error"},
		{"log-format", "log.format", "FORMAT", "json or console"},
	}
}

// envName is the environment variable of a flag: data-dir is INGEST_AGENT_DATA_DIR.
func envName(flag string) string {
	return "INGEST_AGENT_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// addConfigFlags gives cmd the flags that loadConfig reads.
func addConfigFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.String(flagConfig, "", "configuration `FILE`; none: defaults (env "+envName(flagConfig)+")")
	for _, f := range overrideFlags() {
		// An array, so that a value with commas stays one and the last of several wins.
		flags.StringArray(f.name, nil, "`"+f.value+"`: "+f.help+" (env "+envName(f.name)+")")
	}
}

// loadConfig returns the configuration for a command that has addConfigFlags: flags come before environment variables,
// these before the file, and the file before defaults. An empty environment variable counts as not set. Nothing is
// written, so it is called before anything else. Its error ends the process with the code for configuration.
func loadConfig(cmd *cobra.Command) (config.Config, error) {
	file, err := cmd.Flags().GetString(flagConfig)
	if err != nil {
		return config.Config{}, fmt.Errorf("load configuration: %w", err)
	}
	if cmd.Flags().Changed(flagConfig) && file == "" {
		return config.Config{}, usageError(errors.New("--" + flagConfig + " is empty; want a file"))
	}
	if file == "" {
		file = os.Getenv(envName(flagConfig))
	}
	var overrides []config.Override
	for _, f := range overrideFlags() {
		var values []string
		if array, ok := cmd.Flags().Lookup(f.name).Value.(interface{ GetSlice() []string }); ok {
			values = array.GetSlice() // GetStringArray of the flag set would lose one empty value
		}
		origin := "--" + f.name
		if value := os.Getenv(envName(f.name)); len(values) == 0 && value != "" {
			values, origin = []string{value}, envName(f.name)
		}
		for _, value := range values {
			overrides = append(overrides, config.Override{Key: f.key, Value: value, Origin: origin})
		}
	}
	c, err := config.Load(file, overrides, os.LookupEnv)
	return c, usageError(err)
}
