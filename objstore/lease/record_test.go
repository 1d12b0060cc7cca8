package lease_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"ingest-agent/objstore"
	"ingest-agent/objstore/lease"
	"ingest-agent/objstore/memory"
)

// A body over the limit is refused by name, with nothing sent; one at the limit makes the whole way.
func TestBodyLimit(t *testing.T) {
	s := newStore()
	l := acquire(t, as(s, "a"))
	s.forget()
	fill := func(sizeBytes int) lease.Edit {
		return func(r *lease.Record) error { return r.SetBody(strings.Repeat("<", sizeBytes-len(`""`))) }
	}
	err := l.Commit(t.Context(), func(r *lease.Record) error {
		r.Body = json.RawMessage(`"` + strings.Repeat("<", lease.MaxBodyBytes-1) + `"`)
		return nil
	})
	wantErrors(t, "a byte too much", err, lease.ErrTooLarge)
	if text := err.Error(); !strings.Contains(text, "262145") || !strings.Contains(text, "262144") || !strings.Contains(text, testKey) {
		t.Errorf("the error names neither size nor limit nor register: %s", text)
	}
	wantErrors(t, "release with it", l.Release(t.Context(), func(r *lease.Record) error {
		r.State = strings.Repeat("x", lease.MaxBodyBytes+8<<10)
		return nil
	}), lease.ErrTooLarge)
	if calls, _ := s.forget(); len(calls) > 0 {
		t.Errorf("calls: %v", calls)
	}
	wantErrors(t, "renew", l.Renew(t.Context(), nil))
	raw := func(r *lease.Record) error {
		r.Body = json.RawMessage(`"` + strings.Repeat("<", lease.MaxBodyBytes-2) + `"`)
		return nil
	}
	wantErrors(t, "as much as may be", l.Commit(t.Context(), raw))
	seen := observe(t, as(s, ""), lease.Seen{})
	if len(seen.Body) != lease.MaxBodyBytes {
		t.Errorf("body of %d bytes came back", len(seen.Body))
	}
	wantErrors(t, "what JSON makes longer", l.Commit(t.Context(), fill(lease.MaxBodyBytes)), lease.ErrTooLarge)
}

// What is no register of this version of the program is refused by name, and never overwritten.
func TestUnknownFormat(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "unexpected end"},
		{"later format", `{"format":2,"epoch":"seven","holder":["x"]}`, "format 2, this program knows 1"},
		{"no format", `{"epoch":7,"holder":"x","write_id":"w"}`, "format 0"},
		{"cut", `{"format":1,"epoch":7,"holder":"x"`, "unexpected end"},
		{"not JSON", "register", "invalid character"},
		{"of another shape", `[1]`, "cannot unmarshal"},
		{"wrong type", `{"format":1,"epoch":-1,"write_id":"w"}`, "cannot unmarshal"},
		{"no epoch", `{"format":1,"write_id":"w"}`, "epoch 0"},
		{"epoch beyond all", `{"format":1,"epoch":9007199254740993,"write_id":"w"}`, "epoch 9007199254740993"},
		{"no write id", `{"format":1,"epoch":7}`, `write id ""`},
		{"two of them", `{"format":1,"epoch":7,"write_id":"w"}{}`, "invalid character"},
		{"too long", `{"format":1,"epoch":7,"write_id":"` + strings.Repeat("w", lease.MaxBodyBytes+9<<10) + `"}`, "more than"},
	} {
		s := newStore()
		overwrite(t, s, test.text)
		_, err := as(s, "a").Observe(t.Context(), lease.Seen{})
		wantErrors(t, test.name, err, lease.ErrFormat)
		if err != nil && (!strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), testKey)) {
			t.Errorf("%s: %v, want %q and the key in it", test.name, err, test.want)
		}
		_, err = as(s, "a").Acquire(t.Context(), lease.Seen{}, nil)
		wantErrors(t, test.name+": acquire", err, lease.ErrLost, lease.ErrFormat)
	}
}

func TestBody(t *testing.T) {
	var r lease.Record
	if got, err := lease.Body[body](&r); err != nil || got != (body{}) {
		t.Errorf("no body: %+v, %v", got, err)
	}
	if err := r.SetBody(body{Count: 3}); err != nil {
		t.Fatal(err)
	}
	if got, err := lease.Body[body](&r); err != nil || got.Count != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := lease.Body[[]int](&r); !errors.Is(err, lease.ErrFormat) {
		t.Errorf("body of another type: %v", err)
	}
	if err := r.SetBody(func() {}); err == nil {
		t.Error("a function was made a body")
	}
}

// What is read as a register is one, and can be written and read again.
func FuzzRegister(f *testing.F) {
	f.Add([]byte(`{"format":1,"epoch":7,"holder":"","node":"web-3","write_id":"w","beat":41,"state":"live","body":{"count":1}}`))
	f.Add([]byte(`{"format":1,"epoch":9007199254740992,"holder":"","write_id":"w"}`))
	f.Add([]byte(laterFormat))
	f.Add([]byte(`{"format":1,"epoch":1,"holder":"0","write_id":"w","state":"live"}`)) // held: it has to be fenced first
	f.Add([]byte(`{"format":1,"epoch":9007199254740992,"holder":"0","write_id":"w"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		b := memory.New()
		if _, err := b.Put(context.Background(), testKey, bytes.NewReader(text), objstore.Condition{}); err != nil {
			t.Fatal(err)
		}
		r := as(b, "a")
		seen, err := r.Observe(context.Background(), lease.Seen{})
		if err != nil {
			wantErrors(t, "observe", err, lease.ErrFormat)
			return
		}
		observed := seen
		if r.Judge(seen) == lease.Beating {
			_, err := r.Acquire(context.Background(), seen, nil)
			wantErrors(t, "acquire what is beating", err, objstore.ErrInvalid)
			if seen, err = r.Change(context.Background(), seen, lease.Fence, nil); errors.Is(err, lease.ErrTooLarge) || errors.Is(err, lease.ErrFormat) {
				return
			}
			if err != nil || seen.Epoch <= observed.Epoch {
				t.Fatalf("fence epoch %d: got %s, %v", observed.Epoch, &seen, err)
			}
		}
		l, err := r.Acquire(context.Background(), seen, nil)
		if errors.Is(err, lease.ErrTooLarge) || errors.Is(err, lease.ErrFormat) {
			return
		}
		if err != nil || l.Epoch() <= seen.Epoch {
			t.Fatalf("acquire after epoch %d: %v", seen.Epoch, err)
		}
		if again, err := r.Observe(context.Background(), lease.Seen{}); err != nil || again.Epoch != l.Epoch() || again.State != observed.State {
			t.Errorf("got %s, %v, want epoch %d, state %q", &again, err, l.Epoch(), observed.State)
		}
	})
}
