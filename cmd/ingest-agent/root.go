package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// newRoot builds the whole command tree. A new command is one more line in the list.
func newRoot() *cobra.Command {
	root := group(&cobra.Command{
		Use:     "ingest-agent",
		Short:   "Takes OTLP, makes each request durable before it answers, and delivers it",
		Version: versionLine(),
	},
		newConfig(),
		newRun(),
		newInspect(),
		newVerify(),
		newRecover(),
		newReplay(),
		newDrop(),
		newVersion(),
	)
	root.SilenceUsage = true
	root.SilenceErrors = true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	markUsage(root)
	return root
}

// group makes cmd a command that only holds others: alone, or with a word that is none of them, it is a usage error.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(commands...)
	cmd.DisableFlagsInUseLine = true
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("no command given; see %s --help", cmd.CommandPath())
		}
		message := fmt.Sprintf("unknown command %q; ", args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return errors.New(message + "did you mean " + strings.Join(near, " or ") + "?")
		}
		return errors.New(message + "see " + cmd.CommandPath() + " --help")
	}
	cmd.RunE = func(*cobra.Command, []string) error { return nil } // never reached; makes cobra check Args
	return cmd
}

// markUsage gives the errors of all argument checks the exit code for usage. A command without a check takes no arguments.
func markUsage(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.ExactArgs(0)
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err != nil && len(cmd.Commands()) == 0 { // cobra's own text does not say which command
			err = fmt.Errorf("%w; usage: %s", err, cmd.UseLine())
		}
		return usageError(err)
	}
	for _, sub := range cmd.Commands() {
		markUsage(sub)
	}
}
