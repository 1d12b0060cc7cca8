//go:build unix

// Package s3test runs a real S3 server for tests: versitygw, or SeaweedFS where INGEST_AGENT_TEST_S3=seaweedfs.
//
// The server's program is built once into the user's cache folder, which takes minutes; it keeps its data in a temporary
// folder on disk, has an account of its own and a free port on loopback, and ends with the test; versitygw also with the
// process that runs it. It assumes a file system with extended attributes in one of the temporary folder and the cache folder.
package s3test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sys/unix"

	"ingest-agent/bench/freeport"
	"ingest-agent/objstore"
	"ingest-agent/objstore/s3"
)

const (
	bucketName = "test-bucket"
	region     = "us-east-1"
	// startTimeout ends a wait for a server that does not answer. SeaweedFS takes 15 s after a kill.
	startTimeout = time.Minute
	pollInterval = 20 * time.Millisecond
	// pollTimeout is for a server that takes a connection before it can answer on it.
	pollTimeout = time.Second
	// startTries is for the case that somebody takes the port first.
	startTries = 3
)

// kind is a server that there is a program of.
type kind struct {
	name    string
	module  string // the file .mod that it is built with
	program string
	ports   int
	args    func(addresses []string, folder string) []string
}

// kindWanted is the server that the environment asks for.
func kindWanted() (kind, error) {
	switch name := os.Getenv("INGEST_AGENT_TEST_S3"); name {
	case "", "versitygw":
		return kind{
			name: "versitygw", module: "go", program: ".", ports: 1,
			args: func(addresses []string, folder string) []string { return []string{addresses[0], folder} },
		}, nil
	case "seaweedfs":
		return kind{
			name: "seaweedfs", module: "seaweedfs", program: "github.com/seaweedfs/seaweedfs/weed",
			ports: len(seaweedPorts()), args: seaweedArgs,
		}, nil
	default:
		return kind{}, fmt.Errorf("INGEST_AGENT_TEST_S3=%s: allowed are versitygw, seaweedfs", name)
	}
}

// Server is a running server with one bucket.
type Server struct {
	t         testing.TB
	kind      kind
	program   string
	folder    string
	addresses []string
	key       string
	secret    string

	process *exec.Cmd
	stdin   io.Closer
	ended   chan error // gets what the process ended with
	output  lockedBuffer
}

// Start starts a server, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	k, err := kindWanted()
	if err != nil {
		t.Fatal(err)
	}
	program, err := binary(k)
	if err != nil {
		t.Fatalf("build test server: %v", err)
	}
	s := &Server{t: t, kind: k, program: program, folder: dataFolder(t), key: "test" + rand.Text(), secret: rand.Text()}
	t.Cleanup(func() {
		s.Kill9()
		if t.Failed() {
			t.Logf("the server's output:\n%s", s.output.String())
		}
	})
	for range startTries {
		if s.addresses, err = freeport.Pick(k.ports); err != nil {
			continue
		}
		if err = s.start(); err == nil {
			break
		}
		s.Kill9()
	}
	if err == nil {
		err = s.createBucket()
	}
	if err != nil {
		t.Fatalf("start test server: %v\n%s", err, s.output.String())
	}
	return s
}

// URL is that of the bucket, or of a part of it.
func (s *Server) URL(prefix string) string {
	query := url.Values{"region": {region}, "endpoint": {"http://" + s.addresses[0]}, "path_style": {"true"}}
	return "s3://" + bucketName + "/" + prefix + "?" + query.Encode()
}

// Env is the environment of a process that opens URL: this process's own, with the credentials.
func (s *Server) Env() []string {
	return append(os.Environ(), "AWS_ACCESS_KEY_ID="+s.key, "AWS_SECRET_ACCESS_KEY="+s.secret, "AWS_SESSION_TOKEN=",
		"AWS_EC2_METADATA_DISABLED=true")
}

// Credentials are those of the one account.
func (s *Server) Credentials() aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: s.key, SecretAccessKey: s.secret}, nil
	})
}

// Open opens a part of the bucket, until the test ends. Of the options, Credentials are set.
func (s *Server) Open(t testing.TB, prefix string, o s3.Options) objstore.Bucket {
	t.Helper()
	o.Credentials = s.Credentials()
	b, err := s3.Open(context.Background(), s.URL(prefix), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Kill9 ends the server as a crash of its process does, and waits for its end.
func (s *Server) Kill9() {
	if s.process == nil {
		return
	}
	if err := s.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Errorf("kill server: %v", err)
	}
	if err := <-s.ended; err == nil {
		s.t.Error("the server ended by itself before it was killed")
	}
	_ = s.stdin.Close() // the process is gone
	s.process = nil
}

// Restart starts a server that was killed, on the same data and port.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatalf("restart test server: %v\n%s", err, s.output.String())
	}
}

// start starts the process and waits until it answers.
func (s *Server) start() error {
	process := exec.Command(s.program, s.kind.args(s.addresses, s.folder)...) //nolint:gosec,noctx // built above; ends by Kill9
	process.Env = s.Env()
	process.Dir = s.folder
	process.Stdout, process.Stderr = &s.output, &s.output
	stdin, err := process.StdinPipe()
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	if err := process.Start(); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	s.process, s.stdin, s.ended = process, stdin, make(chan error, 1)
	ended := s.ended
	go func() { ended <- process.Wait() }() // joined by Kill9

	client := &http.Client{Timeout: pollTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		resp, err := client.Get("http://" + s.addresses[0] + "/") //nolint:noctx // has a timeout
		if err == nil {
			err = resp.Body.Close()
		}
		if err == nil && resp.StatusCode < http.StatusInternalServerError {
			return nil
		}
		select {
		case err := <-ended:
			ended <- err // for Kill9
			return fmt.Errorf("server ended: %w", errors.Join(err, errors.New("before it answered")))
		case <-deadline.C:
			return fmt.Errorf("server does not answer: %w", err)
		case <-poll.C:
		}
	}
}

// createBucket makes the bucket, as soon as the server is ready for it.
func (s *Server) createBucket() error {
	client := awss3.New(awss3.Options{
		Region: region, BaseEndpoint: aws.String("http://" + s.addresses[0]), UsePathStyle: true, Credentials: s.Credentials(),
		HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	})
	_, err := client.CreateBucket(context.Background(), &awss3.CreateBucketInput{Bucket: aws.String(bucketName)}, func(o *awss3.Options) {
		o.RetryMaxAttempts = 20
	})
	if err != nil {
		return fmt.Errorf("create bucket: %w", err)
	}
	return nil
}

// dataFolder is a new folder that takes extended attributes.
func dataFolder(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	err := checkAttributes(folder)
	if err == nil {
		return folder
	}
	cache, cacheErr := os.UserCacheDir()
	if cacheErr == nil {
		folder, cacheErr = os.MkdirTemp(cache, "ingest-agent-testdata-*") //nolint:usetesting // the other has none
	}
	if cacheErr == nil {
		t.Cleanup(func() {
			if err := os.RemoveAll(folder); err != nil {
				t.Error(err)
			}
		})
		cacheErr = checkAttributes(folder)
	}
	if cacheErr != nil {
		t.Fatalf("the test server needs a folder with extended attributes: %v, %v: set TMPDIR to one", err, cacheErr)
	}
	return folder
}

func checkAttributes(folder string) error {
	path := filepath.Join(folder, "attributes")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("try extended attributes: %w", err)
	}
	err := unix.Setxattr(path, "user.ingest-agent", []byte("1"), 0)
	if err := errors.Join(err, os.Remove(path)); err != nil {
		return fmt.Errorf("try extended attributes in %s: %w", folder, err)
	}
	return nil
}

// lockedBuffer collects the server's output.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSpace(b.b.String())
}
