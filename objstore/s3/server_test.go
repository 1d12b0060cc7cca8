package s3_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
	"ingest-agent/objstore/objtest"
	"ingest-agent/objstore/s3"
	"ingest-agent/objstore/s3/s3test"
)

func TestContract(t *testing.T) {
	server := s3test.Start(t)
	var buckets atomic.Int32
	objtest.Run(t, func(t *testing.T) objstore.Bucket {
		return server.Open(t, fmt.Sprintf("contract/%d", buckets.Add(1)), s3.Options{})
	})
}

func TestProbeServer(t *testing.T) {
	b := s3test.Start(t).Open(t, "", s3.Options{})
	result, err := objstore.Probe(context.Background(), b, ulid.Make().String())
	if err != nil || !result.OK || result.Date.IsZero() {
		t.Errorf("got %+v, %v", result, err)
	}
	if page, err := b.List(context.Background(), objstore.ListOptions{}); err != nil || len(page.Objects) != 0 {
		t.Errorf("left: %+v, %v", page, err)
	}
}

// counter counts what goes over the wire.
type counter struct {
	http.RoundTripper

	requests atomic.Int32
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

// TestRequestCounts holds every operation against what it costs.
func TestRequestCounts(t *testing.T) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	wire := &counter{RoundTripper: transport}
	server := s3test.Start(t)
	b := server.Open(t, "counts", s3.Options{Transport: wire})
	ctx := context.Background()
	version := func(key string) objstore.Version {
		result, err := put(b, key, "v", objstore.Condition{})
		if err != nil {
			t.Fatal(err)
		}
		return result.Version
	}
	if n := wire.requests.Load(); n != 0 {
		t.Errorf("open: %d requests, want none", n)
	}
	for i := range 5 {
		version(fmt.Sprintf("list/%d", i))
	}
	if n := wire.requests.Load(); n != 5 { // nothing is asked about the bucket first
		t.Errorf("the first 5 puts: %d requests", n)
	}
	get := func(key string, o objstore.GetOptions) error {
		object, err := b.Get(ctx, key, o)
		if err == nil {
			err = object.Body.Close()
		}
		return err
	}
	putOnly := func(key string, size int, c objstore.Condition) error {
		_, err := put(b, key, strings.Repeat("x", size), c)
		return err
	}
	current := version("k")
	for _, test := range []struct {
		name string
		want int32
		call func() error
	}{
		{"get", 1, func() error { return get("k", objstore.GetOptions{}) }},
		{"get a range", 1, func() error { return get("list/0", objstore.GetOptions{Offset: -1}) }},
		{"get of nothing", 1, func() error { return get("absent", objstore.GetOptions{}) }},
		{"get unless", 1, func() error { return get("k", objstore.GetOptions{Unless: current}) }},
		{"put", 1, func() error { return putOnly("k2", 1, objstore.Condition{}) }},
		{"put of a whole part", 1, func() error { return putOnly("k3", s3.PartBytes, objstore.Condition{}) }},
		{"create", 1, func() error { return putOnly("k4", 1, objstore.IfAbsent()) }},
		{"create again", 1, func() error { return putOnly("k4", 1, objstore.IfAbsent()) }},
		{"replace", 1, func() error { return putOnly("k", 1, objstore.IfVersion(current)) }},
		{"replace again", 1, func() error { return putOnly("k", 1, objstore.IfVersion(current)) }},
		{"put of 2 parts", 4, func() error { return putOnly("large", s3.PartBytes+1, objstore.Condition{}) }},
		{"create of 3 parts", 5, func() error { return putOnly("larger", 2*s3.PartBytes+1, objstore.IfAbsent()) }},
		{"delete", 1, func() error { return b.Delete(ctx, "k") }},
		{"delete again", 1, func() error { return b.Delete(ctx, "k") }},
		{"list", 1, func() error { _, err := b.List(ctx, objstore.ListOptions{Delimiter: "/"}); return err }},
		{"list of 3 pages", 3, func() error {
			o := objstore.ListOptions{Prefix: "list/", Limit: 2}
			for {
				page, err := b.List(ctx, o)
				if err != nil || page.Next == "" {
					return err
				}
				o.Token = page.Next
			}
		}},
		{"probe", 9, func() error { // five writes, a read, two removals, the sweep's list
			_, err := objstore.Probe(ctx, b, ulid.Make().String())
			return err
		}},
	} {
		before := wire.requests.Load()
		err := test.call()
		if outcome := objstore.Outcome(err); outcome == "unknown" || outcome == "denied" || outcome == "invalid" {
			t.Errorf("%s: %v", test.name, err)
		}
		if n := wire.requests.Load() - before; n != test.want {
			t.Errorf("%s: %d requests, want %d", test.name, n, test.want)
		}
	}
}
