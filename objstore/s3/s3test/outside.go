//go:build unix

package s3test

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// host is what the test server needs of a test, outside of one. Other methods are not called, and would panic.
type host struct {
	testing.TB

	ends []func()
	errs []string
}

// gaveUp is how a Fatal leaves the server's code.
type gaveUp string

func (h *host) Helper()                    {}
func (h *host) Cleanup(end func())         { h.ends = append(h.ends, end) }
func (h *host) Failed() bool               { return len(h.errs) > 0 }
func (h *host) Error(args ...any)          { h.errs = append(h.errs, fmt.Sprint(args...)) }
func (h *host) Fatal(args ...any)          { panic(gaveUp(fmt.Sprint(args...))) }
func (h *host) Logf(f string, args ...any) { fmt.Fprintf(os.Stderr, f+"\n", args...) }

func (h *host) Errorf(f string, args ...any) { h.errs = append(h.errs, fmt.Sprintf(f, args...)) }
func (h *host) Fatalf(f string, args ...any) { panic(gaveUp(fmt.Sprintf(f, args...))) }

func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "s3test-")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			h.Error(err)
		}
	})
	return dir
}

// end runs the cleanups, last first.
func (h *host) end() {
	for _, end := range slices.Backward(h.ends) {
		end()
	}
	h.ends = nil
	for _, text := range h.errs {
		fmt.Fprintln(os.Stderr, "s3test:", text)
	}
}

// StartOutside starts a server outside of a test, for a tool. It ends when stop is called, and with this process.
func StartOutside() (s *Server, stop func(), err error) {
	h := &host{}
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case gaveUp:
			h.end()
			err = fmt.Errorf("start S3 server: %s", string(failure))
		default:
			panic(failure)
		}
	}()
	return Start(h), h.end, nil
}
