package otlpwire

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"ingest-agent/segment"
)

// compareCheck holds Check against pdata and the official runtime, and returns what Check said.
func (o *oracle) compareCheck(tb testing.TB, signal segment.Signal, body []byte) (Info, error) {
	tb.Helper()
	info, err := Check(signal, body)
	_, records, pdataErr := flatten(tb, signal, body)
	lax, strict := accepts(o.lax[signal.Index()], body), accepts(o.strict[signal.Index()], body)
	typedErr := proto.Unmarshal(body, official(signal))
	if got, want := err == nil, pdataErr == nil && lax; got != want {
		tb.Fatalf("Check: %v\npdata: %v\nofficial, UTF-8 apart: %t\nofficial: %v\nbody: %x", err, pdataErr, lax, typedErr, body)
	}
	if err != nil {
		if info.Records != 0 || info.FirstResource != nil || info.InvalidUTF8 {
			tb.Fatalf("refused with %v, info %+v\nbody: %x", err, info, body)
		}
		if pdataErr == nil && typedErr == nil && !hasOldScopes(body) {
			tb.Fatalf("refused with %v, but by nobody else\nbody: %x", err, body)
		}
		return info, err
	}
	if info.Records != records {
		tb.Fatalf("%d records, pdata counts %d\nbody: %x", info.Records, records, body)
	}
	if info.InvalidUTF8 == strict || typedErr != nil && !info.InvalidUTF8 {
		tb.Fatalf("InvalidUTF8 %t, strict %t, official: %v\nbody: %x", info.InvalidUTF8, strict, typedErr, body)
	}
	want, found := firstResource(body)
	if (info.FirstResource != nil) != found || !bytes.Equal(info.FirstResource, want) {
		tb.Fatalf("first resource %x, want %x (%t)\nbody: %x", info.FirstResource, want, found, body)
	}
	return info, nil
}

// hasOldScopes says whether some resource of body has a field by the old number of its scopes. The official runtime must
// accept body.
func hasOldScopes(body []byte) bool {
	for len(body) > 0 {
		e := readElement(body)
		body = body[len(e.raw):]
		for inner := e.content; e.number == 1 && len(inner) > 0; {
			field := readElement(inner)
			if field.number == oldScopesNumber {
				return true
			}
			inner = inner[len(field.raw):]
		}
	}
	return false
}

// firstResource is the first field 1 of a field 1 of body.
func firstResource(body []byte) ([]byte, bool) {
	for len(body) > 0 {
		e := readElement(body)
		body = body[len(e.raw):]
		for inner := e.content; e.number == 1 && len(inner) > 0; {
			r := readElement(inner)
			if r.number == 1 {
				return r.content, true
			}
			inner = inner[len(r.raw):]
		}
	}
	return nil, false
}

// compareConcat holds that two accepted requests, one after the other, are one accepted request with the records of both.
func compareConcat(tb testing.TB, signal segment.Signal, a, b []byte) {
	tb.Helper()
	infoA, errA := Check(signal, a)
	infoB, errB := Check(signal, b)
	if errA != nil || errB != nil {
		return
	}
	both := slices.Concat(a, b)
	info, err := Check(signal, both)
	if err != nil {
		tb.Fatalf("a and b are accepted, a+b is not: %v\na: %x\nb: %x", err, a, b)
	}
	if info.Records != infoA.Records+infoB.Records || info.InvalidUTF8 != (infoA.InvalidUTF8 || infoB.InvalidUTF8) {
		tb.Fatalf("a: %+v\nb: %+v\na+b: %+v\na: %x\nb: %x", infoA, infoB, info, a, b)
	}
	compareParts(tb, signal, both, a, b)
}

// compareParts holds that the records of a, then those of b, are the records of whole, with all that they stand under.
func compareParts(tb testing.TB, signal segment.Signal, whole, a, b []byte) {
	tb.Helper()
	want, _, err := flatten(tb, signal, whole)
	if err != nil {
		tb.Fatalf("whole: %v\nwhole: %x", err, whole)
	}
	flatA, _, errA := flatten(tb, signal, a)
	flatB, _, errB := flatten(tb, signal, b)
	if errA != nil || errB != nil {
		tb.Fatalf("a: %v, b: %v\na: %x\nb: %x", errA, errB, a, b)
	}
	if got := slices.Concat(flatA, flatB); !slices.Equal(got, want) {
		tb.Fatalf("records differ:\ngot  %x\nwant %x\na: %x\nb: %x\nwhole: %x", got, want, a, b, whole)
	}
}

// compareSplit holds Split to its contract.
func (o *oracle) compareSplit(tb testing.TB, signal segment.Signal, body []byte, n int) {
	tb.Helper()
	before := append(bytes.Clone(body), "spare"...) // as in a buffer that is used again
	whole := bytes.Clone(before)
	body = whole[:len(body)]
	info, err := Check(signal, body)
	head, tail, splitErr := Split(signal, body, n)
	if (err == nil) != (splitErr == nil) {
		tb.Fatalf("Check: %v, Split: %v\nbody: %x", err, splitErr, body)
	}
	if err != nil {
		return
	}
	wantHead := min(max(n, 0), info.Records)
	infoHead, errHead := o.compareCheck(tb, signal, head)
	infoTail, errTail := o.compareCheck(tb, signal, tail)
	if errHead != nil || errTail != nil {
		tb.Fatalf("n %d: head: %v, tail: %v\nbody: %x", n, errHead, errTail, body)
	}
	if infoHead.Records != wantHead || infoTail.Records != info.Records-wantHead {
		tb.Fatalf("n %d: %d and %d records of %d\nbody: %x", n, infoHead.Records, infoTail.Records, info.Records, body)
	}
	if len(head) > len(body) || len(tail) > len(body) {
		tb.Fatalf("n %d: parts of %d and %d bytes of %d\nbody: %x", n, len(head), len(tail), len(body), body)
	}
	compareParts(tb, signal, body, head, tail)
	_ = append(head, 0xff)
	_ = append(tail, 0xff)
	if !bytes.Equal(whole, before) {
		tb.Fatalf("n %d: what is appended to a part was written to the body", n)
	}
}
