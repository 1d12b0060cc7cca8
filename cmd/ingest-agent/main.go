// Command ingest-agent takes OTLP, makes each request durable before it answers, and delivers it. There is one file per
// verb; each file has the command's flags and output, and leaves the work to the packages.
//
// Exit codes: 0 done; 1 failed; 2 usage or configuration; 3 ended with work left that is claimable.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// Exit codes of all commands.
const (
	exitDone   = 0
	exitFailed = 1 // any error without a code of its own
	exitUsage  = 2 // the command line or the configuration is wrong; nothing was touched
	exitLeft   = 3 // ended with work left that is claimable
)

// exitError is an error that ends the process with a code other than exitFailed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// withCode gives err, if it is one, an exit code.
func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}

// usageError gives err, if it is one, the exit code for a wrong command line or configuration.
func usageError(err error) error { return withCode(exitUsage, err) }

// run executes one command line and returns its exit code. Errors go to stderr, each in one line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(stderr, "ingest-agent: %s\n", strings.TrimRight(line, "\n"))
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return exitFailed
}
