package s3_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"ingest-agent/objstore"
	"ingest-agent/objstore/s3"
)

const (
	fakeURL    = "s3://bucket/p?region=us-east-1&endpoint=http://store.example&path_style=true"
	fakeKey    = "AKIDFAKEFAKEFAKE"
	fakeSecret = "secret/secret+secret"
	fakeToken  = "token-token-token"
)

// fake is a store in memory, as the protocol says, with a hook in front.
type fake struct {
	// before may answer a request itself, and returns whether it did. Called with the body read.
	before func(w http.ResponseWriter, r *http.Request, body []byte) bool
	// after is called when a request has had its effect, instead of the answer, if not nil and it returns true.
	after func(w http.ResponseWriter, r *http.Request) bool
	skew  time.Duration // of its clock

	mu       sync.Mutex
	objects  map[string][]byte
	uploads  map[string]map[int][]byte
	requests []*http.Request
}

func newFake() *fake {
	return &fake{objects: map[string][]byte{}, uploads: map[string]map[int][]byte{}}
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>", code)
	_ = xml.EscapeText(w, []byte(message))
	fmt.Fprint(w, "</Message><RequestId>R1</RequestId></Error>")
}

func etag(body []byte) string {
	sum := md5.Sum(body)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // cut off
	}
	w.Header().Set("Date", time.Now().Add(f.skew).UTC().Format(http.TimeFormat))
	f.mu.Lock()
	f.requests = append(f.requests, r)
	f.mu.Unlock()
	if f.before != nil && f.before(w, r, body) {
		return
	}
	answer := &recorder{header: w.Header(), status: http.StatusOK}
	f.mu.Lock()
	f.serve(answer, r, body)
	f.mu.Unlock()
	if f.after != nil && f.after(w, r) {
		return
	}
	w.WriteHeader(answer.status)
	_, _ = w.Write(answer.body.Bytes())
}

// recorder keeps an answer until the effect is done.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// refuses decides a precondition.
func (f *fake) refuses(w http.ResponseWriter, r *http.Request, key string) bool {
	have, ok := f.objects[key]
	match := r.Header.Get("If-Match")
	switch {
	case match != "" && !ok:
		fail(w, http.StatusNotFound, "NoSuchKey", "no such key")
	case match != "" && match != etag(have), r.Header.Get("If-None-Match") == "*" && ok:
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed", "precondition failed")
	default:
		return false
	}
	return true
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	key, query := strings.TrimPrefix(r.URL.Path, "/bucket/"), r.URL.Query()
	upload := query.Get("uploadId")
	switch {
	case r.Method == http.MethodPost && query.Has("uploads"):
		id := "upload-" + strconv.Itoa(len(f.requests))
		f.uploads[id] = map[int][]byte{}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	case upload != "" && f.uploads[upload] == nil:
		fail(w, http.StatusNotFound, "NoSuchUpload", "no such upload")
	case r.Method == http.MethodPut && upload != "":
		n, _ := strconv.Atoi(query.Get("partNumber"))
		f.uploads[upload][n] = body
		w.Header().Set("ETag", etag(body))
	case r.Method == http.MethodPost && upload != "":
		if f.refuses(w, r, key) {
			return
		}
		var whole []byte
		for _, n := range slices.Sorted(maps.Keys(f.uploads[upload])) {
			whole = append(whole, f.uploads[upload][n]...)
		}
		f.objects[key] = whole
		delete(f.uploads, upload)
		fmt.Fprintf(w, "<CompleteMultipartUploadResult><ETag>%s</ETag></CompleteMultipartUploadResult>", etag(whole))
	case r.Method == http.MethodDelete && upload != "":
		delete(f.uploads, upload)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPut:
		if !f.refuses(w, r, key) {
			f.objects[key] = body
			w.Header().Set("ETag", etag(body))
		}
	case r.Method == http.MethodDelete:
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case query.Get("list-type") == "2":
		f.list(w, query)
	default:
		have, ok := f.objects[key]
		if !ok {
			fail(w, http.StatusNotFound, "NoSuchKey", "no such key")
			return
		}
		w.Header().Set("ETag", etag(have))
		w.Header().Set("Content-Length", strconv.Itoa(len(have)))
		_, _ = w.Write(have)
	}
}

func (f *fake) list(w http.ResponseWriter, query url.Values) {
	fmt.Fprint(w, "<ListBucketResult>")
	for _, key := range slices.Sorted(maps.Keys(f.objects)) {
		if strings.HasPrefix(key, query.Get("prefix")) {
			fmt.Fprintf(w, "<Contents><Key>%s</Key><ETag>%s</ETag><Size>%d</Size></Contents>", key, etag(f.objects[key]), len(f.objects[key]))
		}
	}
	fmt.Fprint(w, "</ListBucketResult>")
}

// count is how many requests there were, and forgets them.
func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.requests)
	f.requests = nil
	return n
}

// keys are what the store has, parts of uploads included.
func (f *fake) keys() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append(slices.Sorted(maps.Keys(f.objects)), slices.Sorted(maps.Keys(f.uploads))...)
}

// pipes connects clients and a server without the network, so that a bubble of testing/synctest knows who waits.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.ended:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

// open serves a handler inside the bubble, and opens the bucket of url on it.
func open(t *testing.T, handler http.Handler, url string) objstore.Bucket {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
	var wg sync.WaitGroup
	server := &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wg.Add(1) // Close does not wait for handlers
		defer wg.Done()
		handler.ServeHTTP(w, r)
	})}
	wg.Go(func() { _ = server.Serve(p) }) // until it is closed
	transport := &http.Transport{DialContext: p.dial, DisableCompression: true, WriteBufferSize: 1 << 20}
	b, err := s3.Open(context.Background(), url, s3.Options{
		Transport: transport,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: fakeKey, SecretAccessKey: fakeSecret, SessionToken: fakeToken}, nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		time.Sleep(time.Second) // of the bubble: the server lingers so long on connections that it closes
		synctest.Wait()
	})
	return b
}
