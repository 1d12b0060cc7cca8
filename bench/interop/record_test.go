package interop

import (
	"bytes"
	"fmt"
	"testing"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/protobuf/encoding/protowire"
)

// records are counts of log records, spans and metrics, each by its bytes with those of its resource and scope around it.
// How they were put together into requests is no part of it.
type records map[string]int

// form is what of a request's bytes is compared.
type form func(s signal, body []byte) ([]byte, error)

// exact compares the bytes themselves.
func exact(_ signal, body []byte) ([]byte, error) { return body, nil }

// decoded compares what a Collector knows of a request: it writes the content anew and drops unknown fields.
func decoded(s signal, body []byte) ([]byte, error) {
	type request interface {
		UnmarshalProto(data []byte) error
		MarshalProto() ([]byte, error)
	}
	var r request
	switch s {
	case "logs":
		r = plogotlp.NewExportRequest()
	case "traces":
		r = ptraceotlp.NewExportRequest()
	case "metrics":
		r = pmetricotlp.NewExportRequest()
	default:
		return nil, fmt.Errorf("unknown signal %q", s)
	}
	if err := r.UnmarshalProto(body); err != nil {
		return nil, fmt.Errorf("read %s: %w", s, err)
	}
	return r.MarshalProto()
}

// recordsOf takes requests apart.
func recordsOf(requests []request, as form) (records, error) {
	all := records{}
	for _, r := range requests {
		body, err := as(r.signal, r.body)
		if err != nil {
			return nil, err
		}
		parts, err := split(body)
		if err != nil {
			return nil, fmt.Errorf("split %s: %w", r.signal, err)
		}
		for _, p := range parts {
			all[string(r.signal)+p]++
		}
	}
	return all, nil
}

// Field numbers that the three signals have in common.
const (
	fieldResource = 1 // of a request: what one resource has sent
	fieldScope    = 2 // of that: what one scope has sent
	fieldRecord   = 2 // of that: a log record, span or metric
)

// split returns each record of a request as a request of its own. Unknown fields of the request itself belong to none.
func split(body []byte) (parts []string, err error) {
	resources, _, err := pick(body, fieldResource)
	if err != nil {
		return nil, err
	}
	for _, resource := range resources {
		scopes, ofResource, err := pick(resource, fieldScope)
		if err != nil {
			return nil, err
		}
		for _, scope := range scopes {
			all, ofScope, err := pick(scope, fieldRecord)
			if err != nil {
				return nil, err
			}
			for _, record := range all {
				one := part(fieldResource, ofResource, part(fieldScope, ofScope, part(fieldRecord, record)))
				parts = append(parts, string(one))
			}
		}
	}
	return parts, nil
}

// pick returns the contents of the fields of one number, and all else as it stands.
func pick(message []byte, number protowire.Number) (picked [][]byte, rest []byte, err error) {
	for len(message) > 0 {
		num, kind, n := protowire.ConsumeField(message)
		if n < 0 {
			return nil, nil, protowire.ParseError(n)
		}
		if num == number && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(message)
			content, _ := protowire.ConsumeBytes(message[tag:])
			picked = append(picked, content)
		} else {
			rest = append(rest, message[:n]...)
		}
		message = message[n:]
	}
	return picked, rest, nil
}

// missing is how many of want are not in got, at most as often.
func missing(got, want records) (n int) {
	for record, count := range want {
		n += max(0, count-got[record])
	}
	return n
}

// differences describes what of want is not in got and what of got is not in want. What came more often than it was sent is
// counted apart.
func differences(got, want records) (found []string, duplicates int) {
	for record, count := range want {
		if got[record] < count {
			found = append(found, fmt.Sprintf("missing: %.500q", record))
		}
		duplicates += max(0, got[record]-count)
	}
	for record := range got {
		if want[record] == 0 {
			found = append(found, fmt.Sprintf("never sent: %.500q", record))
		}
	}
	return found, duplicates
}

// maxShown bounds the differences that are printed.
const maxShown = 5

// equal waits until s has all records of reference, and fails the test unless they are the same, each once.
func equal(t *testing.T, s, reference *sink, as form) {
	t.Helper()
	if n := arrived(t, s, reference, as); n > 0 {
		t.Errorf("%d records came more than once", n)
	}
}

// arrived waits until s has all records of reference, fails the test if it has others, and returns the number of duplicates.
func arrived(t *testing.T, s, reference *sink, as form) (duplicates int) {
	t.Helper()
	take := func(from *sink) (int, records) {
		requests := from.requests()
		all, err := recordsOf(requests, as)
		if err != nil {
			t.Fatal(err)
		}
		return len(requests), all
	}
	_, want := take(reference)
	if len(want) == 0 {
		t.Fatal("nothing was sent")
	}
	seen, got := take(s)
	_ = holdsInTime(func() bool { // if not, the comparison says what is missing
		if len(s.requests()) != seen { // taking them apart is the dear part
			seen, got = take(s)
		}
		return missing(got, want) == 0
	})
	found, duplicates := differences(got, want)
	for i, difference := range found {
		if i == maxShown {
			t.Errorf("%d differences in all", len(found))
			break
		}
		t.Error(difference)
	}
	return duplicates
}

// TestComparisonSees: a lost record, one that came twice and each changed byte are seen, or the other tests are blind.
func TestComparisonSees(t *testing.T) {
	t.Parallel()
	for _, s := range signals() {
		first, second := strangeResource(s, "first"), strangeResource(s, "second")
		take := func(bodies ...[]byte) records {
			var requests []request
			for _, body := range bodies {
				requests = append(requests, request{signal: s, body: body})
			}
			all, err := recordsOf(requests, exact)
			if err != nil {
				return nil // also a difference
			}
			return all
		}
		want := take(first, second)
		if found, n := differences(take(append(bytes.Clone(second), first...)), want); len(want) != 2 || len(found) != 0 || n != 0 {
			t.Errorf("%s: merged, in another order: %d records, %d too many, %v", s, len(want), n, found)
		}
		if found, n := differences(take(first), want); len(found) != 1 || n != 0 || missing(take(first), want) != 1 {
			t.Errorf("%s: one lost: %d too many, %v", s, n, found)
		}
		if found, n := differences(take(first, second, first), want); len(found) != 0 || n != 1 {
			t.Errorf("%s: one twice: %d too many, %v", s, n, found)
		}
		for i := range first {
			changed := bytes.Clone(first)
			changed[i] ^= 1 << (i % 8)
			if found, _ := differences(take(changed, second), want); len(found) == 0 {
				t.Errorf("%s: byte %d of %x changed: not seen", s, i, first)
			}
		}
	}
}
