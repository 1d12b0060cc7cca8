package s3_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
	"ingest-agent/objstore/s3"
)

func put(b objstore.Bucket, key, body string, c objstore.Condition) (objstore.PutResult, error) {
	return b.Put(context.Background(), key, strings.NewReader(body), c)
}

func read(b objstore.Bucket, key string) (string, error) {
	object, err := b.Get(context.Background(), key, objstore.GetOptions{})
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(object.Body)
	return string(body), errors.Join(err, object.Body.Close())
}

func wantKind(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got error %v, want %v", what, err, kind)
	}
}

// TestCase70 is 409 on the wire: it decides nothing, and is not tried again by itself.
func TestCase70ConflictIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, conflicts := newFake(), 0
		store.before = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			if r.Method != http.MethodPut || conflicts == 0 {
				return false
			}
			conflicts--
			fail(w, http.StatusConflict, "ConditionalRequestConflict", "a conflicting operation occurred")
			return true
		}
		b := open(t, store, fakeURL)
		conflicts = 5
		for range conflicts {
			_, err := put(b, "k", "mine", objstore.IfAbsent())
			wantKind(t, "conflict", err, objstore.ErrUnknown)
		}
		created, err := put(b, "k", "mine", objstore.IfAbsent())
		if n := store.count(); err != nil || n != 6 {
			t.Fatalf("the sixth create: got %v after %d requests, want success after 6", err, n)
		}
		conflicts = 5
		for range conflicts {
			_, err := put(b, "k", "again", objstore.IfVersion(created.Version))
			wantKind(t, "conflict", err, objstore.ErrUnknown)
		}
		store.objects["p/k"] = []byte("theirs")
		_, err = put(b, "k", "again", objstore.IfVersion(created.Version))
		wantKind(t, "replace after another's", err, objstore.ErrPrecondition)
		if body, err := read(b, "k"); body != "theirs" || err != nil {
			t.Errorf("got %q, %v", body, err)
		}
	})
}

// TestCase71 probes stores over the wire.
func TestCase71Probe(t *testing.T) {
	conditional := func(r *http.Request) bool {
		return r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != ""
	}
	for _, test := range []struct {
		name   string
		before func(w http.ResponseWriter, r *http.Request, body []byte) bool
		found  string
	}{
		{"right", nil, ""},
		{"501", func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			if conditional(r) {
				fail(w, http.StatusNotImplemented, "NotImplemented", "A header you provided implies functionality that is not implemented")
			}
			return conditional(r)
		}, "preconditions are refused"},
		{"ignoring", func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
			r.Header.Del("If-Match")
			r.Header.Del("If-None-Match")
			return false
		}, "overwritten although it must be absent"},
		{"ignoring versions", func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
			r.Header.Del("If-Match")
			return false
		}, "overwritten although its version is another"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFake()
				store.before = test.before
				b := open(t, store, fakeURL)
				result, err := objstore.Probe(context.Background(), b, ulid.Make().String())
				if err != nil || result.OK != (test.found == "") || !strings.Contains(result.Found, test.found) {
					t.Fatalf("got %+v, %v, want %q found", result, err, test.found)
				}
				if err := result.Require("adoption"); !result.OK && (!errors.Is(err, objstore.ErrUnsupported) || !strings.Contains(err.Error(), "adoption needs compare-and-swap")) {
					t.Errorf("got error %v, want one that names what is missing", err)
				}
				if _, err := put(b, "shipped", "x", objstore.Condition{}); err != nil {
					t.Errorf("shipping: %v", err)
				}
				if keys := store.keys(); !slices.Equal(keys, []string{"p/shipped"}) {
					t.Errorf("left in the store: %q", keys)
				}
			})
		})
	}
}

// TestCase76 is a store that refuses our clock for a minute, whatever it is corrected to, and one that takes the corrected
// time.
func TestCase76ClockSkew(t *testing.T) {
	t.Run("for a while", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFake()
			heals := time.Now().Add(time.Minute)
			store.before = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				if time.Now().Before(heals) {
					fail(w, http.StatusForbidden, "RequestTimeTooSkewed", "The difference between the request time and the server's time is too large.")
				}
				return time.Now().Before(heals)
			}
			b := open(t, store, fakeURL)
			skewed := 0
			for {
				_, err := put(b, "k", "v", objstore.IfAbsent())
				if err == nil {
					break
				}
				skewed++
				wantKind(t, "put", err, objstore.ErrClockSkew)
				wantKind(t, "put", err, objstore.ErrUnknown)
				if errors.Is(err, objstore.ErrDenied) {
					t.Fatalf("a skewed clock is taken for a refusal for good: %v", err)
				}
				_, err = read(b, "k")
				wantKind(t, "get", err, objstore.ErrClockSkew)
				time.Sleep(10 * time.Second)
			}
			if skewed != 6 {
				t.Errorf("got %d errors in a minute, want 6", skewed)
			}
		})
	})
	t.Run("corrected", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFake()
			store.skew = 20 * time.Minute
			store.before = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
				signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
				if off := time.Now().Add(store.skew).Sub(signed).Abs(); err == nil && off < 15*time.Minute {
					return false
				}
				fail(w, http.StatusForbidden, "RequestTimeTooSkewed", "too large")
				return true
			}
			b := open(t, store, fakeURL)
			_, err := put(b, "k", "v", objstore.IfAbsent())
			wantKind(t, "first put", err, objstore.ErrClockSkew)
			result, err := put(b, "k", "v", objstore.IfAbsent())
			if err != nil {
				t.Fatalf("put with the store's time: %v", err)
			}
			if ahead := time.Until(result.Date); ahead < 19*time.Minute {
				t.Errorf("the bucket's time is %s ahead, want 20m", ahead)
			}
		})
	})
}

// TestCase79 is a store that knows requests as they were before the SDK added checksums.
func TestCase79PlainBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.before = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			for name, values := range r.Header {
				name, value := strings.ToLower(name), strings.Join(values, ",")
				if strings.Contains(name, "checksum") || name == "x-amz-trailer" || name == "content-md5" || name == "expect" ||
					name == "x-amz-decoded-content-length" || strings.Contains(value, "aws-chunked") || strings.HasPrefix(value, "STREAMING-") {
					fail(w, http.StatusNotImplemented, "NotImplemented", name+" is not implemented")
					return true
				}
			}
			if len(r.TransferEncoding) > 0 || (r.Method == http.MethodPut && len(r.Header.Get("X-Amz-Content-Sha256")) != 64) {
				fail(w, http.StatusForbidden, "SignatureDoesNotMatch", "body is not signed")
				return true
			}
			return false
		}
		b := open(t, store, fakeURL)
		created, err := put(b, "k", "one", objstore.IfAbsent())
		if err != nil {
			t.Fatal(err)
		}
		if _, err = put(b, "k", "two", objstore.IfVersion(created.Version)); err != nil {
			t.Error(err)
		}
		if _, err = put(b, "other", "two", objstore.Condition{}); err != nil {
			t.Error(err)
		}
		if _, err = put(b, "large", strings.Repeat("x", s3.PartBytes+1), objstore.IfAbsent()); err != nil {
			t.Error(err)
		}
		if body, err := read(b, "k"); body != "two" || err != nil {
			t.Errorf("got %q, %v", body, err)
		}
		if page, err := b.List(context.Background(), objstore.ListOptions{}); err != nil || len(page.Objects) != 3 {
			t.Errorf("got %+v, %v", page, err)
		}
		if err := b.Delete(context.Background(), "k"); err != nil {
			t.Error(err)
		}
	})
}

// TestCase80 is a store that demands a checksum: it gets one after one refusal, or from the first on where a setting says so.
func TestCase80DemandedChecksum(t *testing.T) {
	const aws = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters"
	large := strings.Repeat("x", s3.PartBytes+1)
	for _, test := range []struct {
		name, code, message, setting string
		accepts                      string // the header
		refused                      int
	}{
		{"both", "InvalidRequest", aws, "", "Content-Md5", 1},
		{"md5", "MissingContentMD5", "Missing required header for this request", "", "Content-Md5", 1},
		{"crc32c", "InvalidRequest", "Missing required header for this request: x-amz-checksum-*", "", "X-Amz-Checksum-Crc32c", 1},
		{"crc32c by setting", "InvalidRequest", aws, "&checksum=crc32c", "X-Amz-Checksum-Crc32c", 0},
		{"md5 by setting", "InvalidRequest", aws, "&checksum=md5", "Content-Md5", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, refused := newFake(), 0
				store.before = func(w http.ResponseWriter, r *http.Request, body []byte) bool {
					if r.Method != http.MethodPut {
						return false
					}
					switch sum := r.Header.Get(test.accepts); sum {
					case "":
						refused++
						fail(w, http.StatusBadRequest, test.code, test.message)
						return true
					default:
						if sum != headerSum(test.accepts, body) {
							fail(w, http.StatusBadRequest, "BadDigest", "wrong "+sum)
							return true
						}
					}
					return false
				}
				b := open(t, store, fakeURL+test.setting)
				created, err := put(b, "k", "one", objstore.IfAbsent())
				if err != nil {
					t.Fatal(err)
				}
				if _, err = put(b, "k", "two", objstore.IfVersion(created.Version)); err != nil {
					t.Error(err)
				}
				if refused != test.refused {
					t.Errorf("%d tries were refused, want %d", refused, test.refused)
				}
				if body, err := read(b, "k"); err != nil || body != "two" {
					t.Errorf("read %q, %v", body, err)
				}
			})
		})
	}
	t.Run("learned by a large body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFake()
			store.before = func(w http.ResponseWriter, r *http.Request, body []byte) bool {
				refuse := r.Method == http.MethodPut && r.Header.Get("Content-Md5") != headerSum("Content-Md5", body)
				if refuse {
					fail(w, http.StatusBadRequest, "InvalidRequest", aws)
				}
				return refuse
			}
			b := open(t, store, fakeURL)
			if _, err := put(b, "large", large, objstore.IfAbsent()); err != nil {
				t.Fatal(err)
			}
			if keys := store.keys(); !slices.Equal(keys, []string{"p/large"}) {
				t.Errorf("the store has %q: the refused upload is left", keys)
			}
		})
	})
	t.Run("forbidden by setting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFake()
			store.before = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				fail(w, http.StatusBadRequest, "InvalidRequest", aws)
				return true
			}
			_, err := put(open(t, store, fakeURL+"&checksum=none"), "k", "one", objstore.IfAbsent())
			wantKind(t, "put", err, objstore.ErrInvalid)
			if n := store.count(); n != 1 || !strings.Contains(err.Error(), "Content-MD5") {
				t.Errorf("got %v after %d requests", err, n)
			}
		})
	})
}

// headerSum is what the header of a checksum has to be.
func headerSum(header string, body []byte) string {
	if header == "Content-Md5" {
		sum := etagSum(body)
		return base64.StdEncoding.EncodeToString(sum)
	}
	crc := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	return base64.StdEncoding.EncodeToString([]byte{byte(crc >> 24), byte(crc >> 16), byte(crc >> 8), byte(crc)})
}

func etagSum(body []byte) []byte {
	var sum []byte
	_, _ = fmt.Sscanf(strings.Trim(etag(body), `"`), "%x", &sum)
	return sum
}
