package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Set by the linker: -ldflags "-X main.version=v1.2.3 -X main.commit=abcdef". Where they are not, what the toolchain
// recorded is used.
var version, commit string

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Prints version, commit and Go version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

// versionLine is what version prints.
func versionLine() string {
	info, _ := debug.ReadBuildInfo()
	v, c := build(version, commit, info)
	return fmt.Sprintf("ingest-agent %s commit %s %s", v, c, runtime.Version())
}

// build returns version and commit: as the linker set them, else as the toolchain recorded them in info, else a word that
// says that they are not known. info may be nil.
func build(version, commit string, info *debug.BuildInfo) (string, string) {
	if info != nil {
		if version == "" {
			version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && commit == "" {
				commit = s.Value
			}
		}
	}
	if version == "" || version == "(devel)" {
		version = "devel"
	}
	if commit == "" {
		commit = "unknown"
	}
	return version, commit
}

// shortVersion is the version alone.
func shortVersion() string {
	info, _ := debug.ReadBuildInfo()
	v, _ := build(version, commit, info)
	return v
}
