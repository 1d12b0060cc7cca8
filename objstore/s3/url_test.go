package s3

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ingest-agent/objstore"
)

func TestParseURL(t *testing.T) {
	for text, want := range map[string]Location{
		"s3://b.ucket":                   {Bucket: "b.ucket"},
		"s3://bucket/":                   {Bucket: "bucket"},
		"s3://bucket/a/b/":               {Bucket: "bucket", Prefix: "a/b"},
		"s3://bucket/p?region=eu-west-1": {Bucket: "bucket", Prefix: "p", Region: "eu-west-1"},
		"s3://bucket?endpoint=http://127.0.0.1:9000/&path_style=true": {
			Bucket: "bucket", Endpoint: "http://127.0.0.1:9000", PathStyle: true,
		},
		"s3://bucket?endpoint=https%3A%2F%2Fstore.example%2Fs3&path_style=false": {Bucket: "bucket", Endpoint: "https://store.example/s3"},
		"s3://bucket?sse=aws:kms&sse_kms_key=arn:aws:kms:eu-west-1:1:key/2&storage_class=STANDARD_IA&checksum=md5": {
			Bucket: "bucket", SSE: "aws:kms", SSEKMSKey: "arn:aws:kms:eu-west-1:1:key/2", StorageClass: "STANDARD_IA", checksum: checksumMD5,
		},
	} {
		got, err := ParseURL(text)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Location{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	const secret = "SeCrEt"
	for text, says := range map[string]string{
		"":                                     "s3://",
		"file:/x":                              "s3://",
		"s3://":                                "bucket name",
		"s3:bucket":                            "s3://bucket",
		"s3:///key":                            "bucket name",
		"s3://key:" + secret + "@bucket":       "environment",
		"s3://key:" + secret + "/x@bucket":     "not a URL",
		"s3://bucket?secret_key=" + secret:     `"secret_key", allowed are checksum, endpoint, path_style, region, sse, sse_kms_key, storage_class`,
		"s3://bucket?region=" + secret + "%2F": "region",
		"s3://bucket?region=a&region=b":        "more than once",
		"s3://bucket?path_style=maybe":         "true, false",
		"s3://bucket?sse=none":                 "AES256",
		"s3://bucket?sse_kms_key=k":            "sse=aws:kms",
		"s3://bucket?checksum=crc":             "crc32c",
		"s3://bucket?endpoint=store":           "http://host:port",
		"s3://bucket?endpoint=http://u:" + secret + "@h": "without credentials",
		"s3://bucket?storage_class=":                     "storage_class",
		"s3://bucket/a//b":                               "prefix",
		"s3://bucket/..":                                 "prefix",
		"s3://bucket/a#b":                                "s3://bucket/prefix",
		"s3://bucket?%zz":                                "name=value",
	} {
		_, err := ParseURL(text)
		if !errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got error %v, want %s and no secret", text, err, says)
		}
	}
}

// FuzzParseURL: what is parsed can be written as a URL that parses to the same, and has a prefix that keys can follow.
func FuzzParseURL(f *testing.F) {
	for _, text := range []string{
		"s3://bucket", "s3://b.ucket/a/b/", "s3://bucket/p%20q?region=eu-west-1&path_style=1", "s3://bucket?endpoint=http://127.0.0.1:9000/",
		"s3://bucket?sse=aws:kms&sse_kms_key=arn:aws:kms:eu-west-1:1:key/2&storage_class=STANDARD_IA&checksum=md5", "s3://u:p@bucket", "s3://bucket/a/../b",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseURL(text)
		if err != nil {
			if !errors.Is(err, objstore.ErrInvalid) {
				t.Fatalf("parse %q: got error %v", text, err)
			}
			return
		}
		if l.Prefix != "" {
			if err := objstore.CheckKey(l.Prefix); err != nil {
				t.Fatalf("parse %q: prefix %q: %v", text, l.Prefix, err)
			}
		}
		again := url.URL{Scheme: "s3", Host: l.Bucket, Path: "/" + l.Prefix, RawQuery: l.query().Encode()}
		got, err := ParseURL(again.String())
		if diff := cmp.Diff(l, got, cmp.AllowUnexported(Location{})); err != nil || diff != "" {
			t.Fatalf("parse %q, written as %q: %v\n%s", text, again.String(), err, diff)
		}
	})
}

// query is the inverse of setParameters.
func (l *Location) query() url.Values {
	values := url.Values{"path_style": {strconv.FormatBool(l.PathStyle)}}
	for name, value := range map[string]string{
		"region": l.Region, "endpoint": l.Endpoint, "sse": string(l.SSE), "sse_kms_key": l.SSEKMSKey, "storage_class": string(l.StorageClass),
		"checksum": map[checksumKind]string{checksumNone: "none", checksumCRC32C: "crc32c", checksumMD5: "md5"}[l.checksum],
	} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return values
}

// TestOpenDefaults is what differs between AWS and other stores.
func TestOpenDefaults(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "", "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": t.TempDir() + "/none", "AWS_SHARED_CREDENTIALS_FILE": t.TempDir() + "/none", "AWS_MAX_ATTEMPTS": "9",
	} {
		t.Setenv(name, value)
	}
	whole := func(url string) *bucket {
		t.Helper()
		b, err := Open(context.Background(), url, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		return b.(*bucket)
	}
	if _, err := Open(context.Background(), "s3://bucket", Options{}); !errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), "region") {
		t.Errorf("no region: got error %v", err)
	}
	if b := whole("s3://bucket?region=eu-west-1"); checksumKind(b.checksum.Load()) != checksumCRC32C || b.client.Options().Region != "eu-west-1" {
		t.Error("on AWS a body has a checksum")
	}
	b := whole("s3://bucket?endpoint=http://store.example")
	if o := b.client.Options(); checksumKind(b.checksum.Load()) != checksumUnset || o.Region != defaultRegion || o.Retryer.MaxAttempts() != maxAttempts {
		t.Errorf("elsewhere: checksum %d, region %s, %d tries", b.checksum.Load(), o.Region, o.Retryer.MaxAttempts())
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://store.example")
	if b := whole("s3://bucket?region=r1"); checksumKind(b.checksum.Load()) != checksumUnset {
		t.Error("an endpoint of the environment is taken for AWS")
	}
}
