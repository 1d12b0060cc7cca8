package s3_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
	"ingest-agent/objstore/s3"
)

// abort cuts the connection, as http.Server does it.
func abort() { panic(http.ErrAbortHandler) }

// TestErrorKinds holds every answer of a store against the kind it has to be, and the number of tries it has to take.
func TestErrorKinds(t *testing.T) {
	const sure, retried = 1, 3 // requests
	version := objstore.IfVersion("0123")
	for _, test := range []struct {
		call         string
		cond         objstore.Condition
		status       int
		code         string
		want         error
		wantRequests int
	}{
		{"put", objstore.IfAbsent(), 412, "PreconditionFailed", objstore.ErrPrecondition, sure},
		{"put", version, 412, "PreconditionFailed", objstore.ErrPrecondition, sure},
		{"put", version, 412, "", objstore.ErrPrecondition, sure},
		{"put", version, 404, "NoSuchKey", objstore.ErrPrecondition, sure},
		{"put", version, 404, "", objstore.ErrPrecondition, sure},
		{"put", version, 404, "NoSuchBucket", objstore.ErrDenied, sure},
		{"put", objstore.IfAbsent(), 404, "NoSuchKey", objstore.ErrUnknown, sure},
		{"put", objstore.IfAbsent(), 409, "ConditionalRequestConflict", objstore.ErrUnknown, sure},
		{"put", objstore.IfAbsent(), 409, "", objstore.ErrUnknown, sure},
		{"put", objstore.IfAbsent(), 500, "InternalError", objstore.ErrUnknown, sure},
		{"put", version, 502, "", objstore.ErrUnknown, sure},
		{"put", version, 503, "SlowDown", objstore.ErrUnknown, sure},
		{"put", version, 400, "RequestTimeout", objstore.ErrUnknown, sure},
		{"put", version, 400, "BadDigest", objstore.ErrUnknown, sure},
		{"put", version, 429, "", objstore.ErrUnknown, sure},
		{"put", version, 307, "TemporaryRedirect", objstore.ErrUnknown, sure},
		{"put", version, 301, "PermanentRedirect", objstore.ErrDenied, sure},
		{"put", version, 501, "NotImplemented", objstore.ErrUnsupported, sure},
		{"put", version, 405, "MethodNotAllowed", objstore.ErrUnsupported, sure},
		{"put", version, 400, "InvalidArgument", objstore.ErrInvalid, sure},
		{"put", version, 400, "ExpiredToken", objstore.ErrDenied, sure},
		{"put", version, 413, "EntityTooLarge", objstore.ErrInvalid, sure},
		{"put", version, 403, "AccessDenied", objstore.ErrDenied, sure},
		{"put", version, 403, "RequestTimeTooSkewed", objstore.ErrClockSkew, sure},
		{"put", version, 401, "", objstore.ErrDenied, sure},
		{"put", objstore.Condition{}, 500, "InternalError", objstore.ErrUnknown, retried},
		{"put", objstore.Condition{}, 503, "SlowDown", objstore.ErrUnknown, retried},
		{"put", objstore.Condition{}, 403, "AccessDenied", objstore.ErrDenied, sure},
		{"get", objstore.Condition{}, 404, "NoSuchKey", objstore.ErrNotFound, sure},
		{"get", objstore.Condition{}, 404, "NoSuchBucket", objstore.ErrDenied, sure},
		{"get", objstore.Condition{}, 404, "", objstore.ErrUnknown, sure}, // a proxy's
		{"get", objstore.Condition{}, 304, "", objstore.ErrNotModified, sure},
		{"get", objstore.Condition{}, 403, "InvalidAccessKeyId", objstore.ErrDenied, sure},
		{"get", objstore.Condition{}, 416, "InvalidRange", objstore.ErrInvalid, sure},
		{"get", objstore.Condition{}, 504, "", objstore.ErrUnknown, retried},
		{"delete", objstore.Condition{}, 404, "NoSuchKey", nil, sure},
		{"delete", objstore.Condition{}, 404, "NoSuchBucket", objstore.ErrDenied, sure},
		{"delete", objstore.Condition{}, 500, "", objstore.ErrUnknown, retried},
		{"list", objstore.Condition{}, 404, "NoSuchBucket", objstore.ErrDenied, sure},
		{"list", objstore.Condition{}, 403, "AccessDenied", objstore.ErrDenied, sure},
		{"list", objstore.Condition{}, 503, "SlowDown", objstore.ErrUnknown, retried},
	} {
		t.Run(test.call+" "+strconv.Itoa(test.status)+" "+test.code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFake()
				store.before = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
					switch {
					case test.status == http.StatusNotModified:
						w.WriteHeader(test.status)
					case test.code == "":
						w.WriteHeader(test.status)
						_, _ = io.WriteString(w, "<html><p>not from the store")
					default:
						fail(w, test.status, test.code, "as the test says")
					}
					return true
				}
				b := open(t, store, fakeURL)
				var err error
				switch ctx := context.Background(); test.call {
				case "put":
					_, err = put(b, "k", "v", test.cond)
				case "get":
					_, err = b.Get(ctx, "k", objstore.GetOptions{})
				case "delete":
					err = b.Delete(ctx, "k")
				case "list":
					_, err = b.List(ctx, objstore.ListOptions{})
				}
				wantKind(t, test.call, err, test.want)
				kinds := 0
				for _, kind := range []error{
					objstore.ErrNotFound, objstore.ErrPrecondition, objstore.ErrNotModified, objstore.ErrUnknown, objstore.ErrDenied,
					objstore.ErrUnsupported, objstore.ErrInvalid, context.Canceled, context.DeadlineExceeded, io.EOF,
				} {
					if errors.Is(err, kind) {
						kinds++
					}
				}
				if test.want != nil && kinds != 1 {
					t.Errorf("got an error of %d kinds: %v", kinds, err)
				}
				if n := store.count(); n != test.wantRequests {
					t.Errorf("%d requests, want %d", n, test.wantRequests)
				}
			})
		})
	}
}

// TestFaultAnswerCutAfterEffect cuts the connection when a write is done: its outcome is unknown, it is not sent again, and
// a second one by hand is lost against the first.
func TestFaultAnswerCutAfterEffect(t *testing.T) {
	for _, size := range []int{1, s3.PartBytes + 1} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, cut, writes := newFake(), true, 0
				store.after = func(_ http.ResponseWriter, r *http.Request) bool {
					if r.Header.Get("If-None-Match") == "*" || r.Header.Get("If-Match") != "" {
						writes++
						if cut {
							abort()
						}
					}
					return false
				}
				b, body := open(t, store, fakeURL), strings.Repeat("m", size)
				_, err := put(b, "k", body, objstore.IfAbsent())
				wantKind(t, "put", err, objstore.ErrUnknown)
				if writes != 1 {
					t.Errorf("sent %d times", writes)
				}
				if got, err := read(b, "k"); got != body || err != nil {
					t.Errorf("read back %d bytes, %v", len(got), err)
				}
				cut = false
				_, err = put(b, "k", body, objstore.IfAbsent())
				wantKind(t, "again", err, objstore.ErrPrecondition) // the echo
				if keys := store.keys(); !slices.Equal(keys, []string{"p/k"}) {
					t.Errorf("the store has %q", keys)
				}
			})
		})
	}
}

// TestFaultCutRetries cuts the first answer of calls that may be sent again.
func TestFaultCutRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, seen := newFake(), map[string]bool{}
		store.after = func(_ http.ResponseWriter, r *http.Request) bool {
			if call := r.Method + r.URL.Path + r.URL.RawQuery; !seen[call] {
				seen[call] = true
				abort()
			}
			return false
		}
		b := open(t, store, fakeURL)
		if _, err := put(b, "k", "v", objstore.Condition{}); err != nil {
			t.Error(err)
		}
		if body, err := read(b, "k"); body != "v" || err != nil {
			t.Errorf("got %q, %v", body, err)
		}
		if page, err := b.List(context.Background(), objstore.ListOptions{}); err != nil || len(page.Objects) != 1 {
			t.Errorf("got %+v, %v", page, err)
		}
		if err := b.Delete(context.Background(), "k"); err != nil {
			t.Error(err)
		}
	})
}

// TestFaultStalled is a store that takes requests and never answers: a call ends after its time, or with its context.
func TestFaultStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.before = func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
			<-r.Context().Done()
			return true
		}
		b := open(t, store, fakeURL)
		start := time.Now()
		_, err := put(b, "k", "v", objstore.IfAbsent())
		wantKind(t, "put", err, objstore.ErrUnknown)
		if took := time.Since(start); took < s3.DefaultRequestTimeout || took > s3.DefaultRequestTimeout+time.Second {
			t.Errorf("ended after %s, want %s", took, s3.DefaultRequestTimeout)
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("our own time limit is taken for the caller's context: %v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start = time.Now()
		_, err = b.Get(ctx, "k", objstore.GetOptions{})
		wantKind(t, "get", err, objstore.ErrUnknown)
		wantKind(t, "get", err, context.DeadlineExceeded)
		if took := time.Since(start); took != time.Second {
			t.Errorf("ended %s after a context of 1s", took)
		}
		start = time.Now()
		_, err = b.List(context.Background(), objstore.ListOptions{}) // three tries
		wantKind(t, "list", err, objstore.ErrUnknown)
		if took := time.Since(start); took < 3*s3.DefaultRequestTimeout || took > 4*s3.DefaultRequestTimeout {
			t.Errorf("three tries took %s", took)
		}
	})
}

// TestFaultStalledUpload is a store that reads a large body slowly, and one that stops reading.
func TestFaultStalledUpload(t *testing.T) {
	const size = 8 << 20
	for _, test := range []struct {
		name           string
		bytesPerSecond int64
		want           error
	}{{"slow", 200 << 10, nil}, {"too slow", 50 << 10, objstore.ErrUnknown}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					for {
						n, err := io.CopyN(io.Discard, r.Body, 64<<10)
						if err != nil {
							break
						}
						time.Sleep(time.Duration(n) * time.Second / time.Duration(test.bytesPerSecond))
					}
					w.Header().Set("ETag", `"1"`)
				})
				_, err := put(open(t, handler, fakeURL), "k", strings.Repeat("x", size), objstore.IfAbsent())
				wantKind(t, "put", err, test.want)
			})
		})
	}
}

// TestFaultBodyCut is an object whose body ends early, in every way: never is that an end.
func TestFaultBodyCut(t *testing.T) {
	whole := strings.Repeat("0123456789", 10_000)
	for _, test := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request)
	}{
		{"cut", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
			_, _ = io.WriteString(w, whole[:50_000])
			abort()
		}},
		{"less than the range", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "50000")
			w.Header().Set("Content-Range", "bytes 0-99999/100000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, whole[:50_000])
		}},
		{"stalled", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
			_, _ = io.WriteString(w, whole[:50_000])
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			<-r.Context().Done()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("ETag", `"1"`)
					test.answer(w, r)
				}), fakeURL)
				start := time.Now()
				object, err := b.Get(context.Background(), "k", objstore.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(object.Body)
				wantKind(t, "read", err, objstore.ErrUnknown)
				if string(got) != whole[:len(got)] || errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
					t.Errorf("got %d bytes, %v", len(got), err)
				}
				if took := time.Since(start); took > 2*s3.DefaultRequestTimeout {
					t.Errorf("took %s", took)
				}
				if err := object.Body.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestSlowReader takes an hour between two reads: that is not the store's fault, and no error.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.objects["p/k"] = []byte(strings.Repeat("x", 300_000))
		object, err := open(t, store, fakeURL).Get(context.Background(), "k", objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var size int64
		for err == nil {
			var n int64
			n, err = io.CopyN(io.Discard, object.Body, 100_000)
			size += n
			time.Sleep(time.Hour)
		}
		if !errors.Is(err, io.EOF) || size != 300_000 {
			t.Errorf("read %d bytes, %v", size, err)
		}
		if err := object.Body.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestFaultMultipart lets each request of an upload fail: no part is left, unless the abort fails too, which the error says.
func TestFaultMultipart(t *testing.T) {
	body := strings.Repeat("x", s3.PartBytes+1)
	for request := 2; request <= 4; request++ {
		for _, stuck := range []bool{false, true} {
			if stuck && request != 3 { // one is enough: an abort does not know what failed
				continue
			}
			t.Run(strconv.Itoa(request)+" "+strconv.FormatBool(stuck), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store, n := newFake(), 0
					store.before = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
						n++
						refuse := n == request || (stuck && r.Method == http.MethodDelete)
						if refuse {
							fail(w, http.StatusForbidden, "AccessDenied", "no")
						}
						return refuse
					}
					_, err := put(open(t, store, fakeURL), "k", body, objstore.IfAbsent())
					wantKind(t, "put", err, objstore.ErrDenied)
					if left := len(store.keys()); (left == 1) != stuck || strings.Contains(err.Error(), "may be left") != stuck {
						t.Errorf("%d uploads are left, and the error says %v", left, err)
					}
				})
			})
		}
	}
}

// TestMultipartPrecondition decides the condition where the parts are put together, also when that is in the body of a 200.
func TestMultipartPrecondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		b, body := open(t, store, fakeURL), strings.Repeat("x", s3.PartBytes+1)
		if _, err := put(b, "k", "small", objstore.Condition{}); err != nil {
			t.Fatal(err)
		}
		_, err := put(b, "k", body, objstore.IfAbsent())
		wantKind(t, "create", err, objstore.ErrPrecondition)
		_, err = put(b, "absent", body, objstore.IfVersion("1"))
		wantKind(t, "replace of nothing", err, objstore.ErrPrecondition)
		for code, kind := range map[string]error{"PreconditionFailed": objstore.ErrPrecondition, "InternalError": objstore.ErrUnknown} {
			store.before = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
				late := r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
				if late {
					fail(w, http.StatusOK, code, "found late")
				}
				return late
			}
			_, err = put(b, "other", body, objstore.IfAbsent())
			wantKind(t, code+" in a 200", err, kind)
		}
		if keys := store.keys(); !slices.Equal(keys, []string{"p/k"}) {
			t.Errorf("the store has %q", keys)
		}
	})
}

// TestNoSecretInErrors echoes what a store knows of the credentials.
func TestNoSecretInErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.before = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			fail(w, http.StatusForbidden, "SignatureDoesNotMatch", strings.Join([]string{
				fakeSecret, r.Header.Get("Authorization"), r.Header.Get("X-Amz-Security-Token"), "\x1b[31m", strings.Repeat("long ", 1000),
			}, " "))
			return true
		}
		_, err := put(open(t, store, fakeURL), "k", "v", objstore.Condition{})
		wantKind(t, "put", err, objstore.ErrDenied)
		for _, secret := range []string{fakeKey, fakeSecret, fakeToken, "\x1b"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q is in the error %v", secret, err)
			}
		}
		if text := err.Error(); len(text) > 1000 || !strings.Contains(text, "SignatureDoesNotMatch") || !strings.Contains(text, "403") {
			t.Errorf("got error %v", err)
		}
	})
}

// TestMissingETag is an answer without a version: as a condition it would be none.
func TestMissingETag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }), fakeURL)
		_, err := put(b, "k", "v", objstore.IfAbsent())
		wantKind(t, "put", err, objstore.ErrUnknown)
		_, err = b.Get(context.Background(), "k", objstore.GetOptions{})
		wantKind(t, "get", err, objstore.ErrUnknown)
	})
}

// TestEndOfEmpty asks for the last bytes of an object that has none, which AWS refuses: it costs a second request, and is an
// error if the object has got content in between.
func TestEndOfEmpty(t *testing.T) {
	for _, grown := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := newFake()
			store.objects["p/k"] = nil
			store.before = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
				refuse := r.Header.Get("Range") != ""
				if refuse {
					fail(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange", "not satisfiable")
				}
				if grown {
					store.objects["p/k"] = []byte("grown")
				}
				return refuse
			}
			object, err := open(t, store, fakeURL).Get(context.Background(), "k", objstore.GetOptions{Offset: -3})
			if n := store.count(); n != 2 {
				t.Errorf("%d requests", n)
			}
			if grown {
				wantKind(t, "get", err, objstore.ErrUnknown)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(object.Body)
			if err = errors.Join(err, object.Body.Close()); err != nil || len(body) != 0 {
				t.Errorf("got %q, %v", body, err)
			}
		})
	}
}

// TestListOdd is what stores answer to a listing that is not as the protocol says, and foreign keys that XML cannot hold.
func TestListOdd(t *testing.T) {
	const start = "<ListBucketResult><EncodingType>url</EncodingType>"
	for _, test := range []struct {
		name, answer string
		want         []string // nil: an error
	}{
		{"encoded", start + "<Contents><Key>p/a+b%0B%2B</Key></Contents><Contents><Key>p/z</Key></Contents></ListBucketResult>", []string{"a b\v+", "z"}},
		{"not encoded", "<ListBucketResult><Contents><Key>p/a+b%0B</Key></Contents></ListBucketResult>", []string{"a+b%0B"}},
		{"no order", start + "<Contents><Key>p/b</Key></Contents><Contents><Key>p/a</Key></Contents></ListBucketResult>", []string{"a", "b"}},
		{"another's", start + "<Contents><Key>other/b</Key></Contents><Contents><Key>p/a</Key></Contents></ListBucketResult>", []string{"a"}},
		{"bad encoding", start + "<Contents><Key>p/%zz</Key></Contents></ListBucketResult>", nil},
		{"cut", start + "<Contents><Key>p/a</Key></Contents>", nil},
		{"no next page", start + "<IsTruncated>true</IsTruncated></ListBucketResult>", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.answer) }), fakeURL)
				page, err := b.List(context.Background(), objstore.ListOptions{})
				if test.want == nil {
					wantKind(t, "list", err, objstore.ErrUnknown)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, info := range page.Objects {
					got = append(got, info.Key)
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("got %q, want %q", got, test.want)
				}
			})
		})
	}
}
