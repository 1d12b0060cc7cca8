// Command testserver is a real S3 server for tests: it serves the buckets in a folder until it is killed or its standard
// input ends, as it does when the test that started it dies. Its arguments are the address to listen on and the folder,
// which must be on a file system with extended attributes; its one account comes from the usual variables. It is a module
// of its own, so that its dependencies stay out of the agent's.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3response"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	store, err := posix.New(os.Args[2], meta.XattrMeta{}, posix.PosixOpts{})
	if err == nil {
		err = embedgw.RunVersityGW(ctx, &atomicDelete{Posix: store}, &embedgw.Config{
			RootUserAccess: os.Getenv("AWS_ACCESS_KEY_ID"), RootUserSecret: os.Getenv("AWS_SECRET_ACCESS_KEY"),
			Region: "us-east-1", Ports: []string{os.Args[1]}, KeepAlive: true, Quiet: true,
			MaxConnections: 4096, MaxRequests: 2048, MultipartMaxParts: 10000,
		})
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// atomicDelete closes a gap in v1.8.0: its DeleteObject does not take the lock under which PutObject compares and
// publishes, so that a replacement of a version can bring back an object that was deleted between the two.
type atomicDelete struct {
	*posix.Posix

	mu sync.RWMutex
}

func (s *atomicDelete) PutObject(ctx context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	if in.IfMatch != nil {
		s.mu.RLock()
		defer s.mu.RUnlock()
	}
	return s.Posix.PutObject(ctx, in)
}

func (s *atomicDelete) DeleteObject(ctx context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Posix.DeleteObject(ctx, in)
}
