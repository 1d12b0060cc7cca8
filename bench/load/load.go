// Package load sends OTLP requests made by otlpgen over gRPC and HTTP and remembers which of their records were
// acknowledged.
//
// It guarantees that a number is in Acked only if a success answer for its whole request was read, and that a request is
// sent once, unless Retry is set. It goes on through refusals and lost connections until it is told to stop. It assumes
// that a record's number is given out by one Sequence.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"ingest-agent/bench/otlpgen"
	"ingest-agent/bench/seqset"
	"ingest-agent/bench/wire"
	"ingest-agent/segment"
)

// Defaults of Config.
const (
	DefaultSenders = 4
	DefaultRecords = 100
	DefaultTimeout = 10 * time.Second
)

// failurePause keeps a sender from spinning while the other side is down or refuses.
const failurePause = 10 * time.Millisecond

// Sequence gives out numbers from 1.
type Sequence struct{ last atomic.Uint64 }

// Take returns the first of n new numbers.
func (s *Sequence) Take(n int) (first uint64) { return s.last.Add(uint64(n)) - uint64(n) + 1 }

// Skip leaves n numbers out, such as those of an earlier load.
func (s *Sequence) Skip(n uint64) { s.last.Add(n) }

// Last is the largest number given out.
func (s *Sequence) Last() uint64 { return s.last.Load() }

// Config of a load. At least one of GRPC and HTTP is set; zero values elsewhere mean the defaults.
type Config struct {
	GRPC, HTTP  string           // host:port of the endpoints
	Senders     int              // for each endpoint
	Records     int              // in a request
	Signals     []segment.Signal // sent in turn; default: all
	Compression string           // wire.None (default), wire.Gzip, wire.Zstd
	Rate        float64          // requests a second over all senders; 0: each sender sends when its last request is answered
	Requests    uint64           // stop after so many; 0: when ctx ends
	Timeout     time.Duration    // of a request
	Retry       bool             // send a request again, after the delay that the answer asks for, until it is acknowledged or the load is stopped
	Seed        uint64

	Sequence *Sequence   // default: a new one
	Acked    *seqset.Set // default: a new one
	AckLog   io.Writer   // when set, gets a line "first count" for each acknowledged request
	// OnAck, when set, is called in the moment in which a success answer was read, by several senders at once.
	OnAck func(first uint64, records int)
}

// Load is one run of senders.
type Load struct {
	cfg       Config
	generator *otlpgen.Generator
	pace      *pace
	started   atomic.Uint64 // requests
	tally     tally
	logMu     sync.Mutex // guards writes to cfg.AckLog
	logErr    error
}

// New prepares a load.
func New(cfg Config) (*Load, error) {
	if cfg.GRPC == "" && cfg.HTTP == "" {
		return nil, errors.New("prepare load: no endpoint")
	}
	setDefault(&cfg.Senders, DefaultSenders)
	setDefault(&cfg.Records, DefaultRecords)
	setDefault(&cfg.Timeout, DefaultTimeout)
	setDefault(&cfg.Compression, wire.None)
	setDefault(&cfg.Sequence, &Sequence{})
	setDefault(&cfg.Acked, &seqset.Set{})
	if len(cfg.Signals) == 0 {
		cfg.Signals = segment.Signals[:]
	}
	if cfg.Senders < 0 || cfg.Rate < 0 {
		return nil, errors.New("prepare load: senders and rate must not be negative")
	}
	g, err := otlpgen.New(cfg.Seed, cfg.Records)
	if err != nil {
		return nil, fmt.Errorf("prepare load: %w", err)
	}
	return &Load{cfg: cfg, generator: g, pace: newPace(cfg.Rate)}, nil
}

func setDefault[T comparable](value *T, fallback T) {
	var zero T
	if *value == zero {
		*value = fallback
	}
}

// Acked is the set of acknowledged numbers. It grows while Run is at work.
func (l *Load) Acked() *seqset.Set { return l.cfg.Acked }

// Run sends until ctx ends or Requests are sent. Requests in hand are then finished, within Timeout. Its error is that of a
// setup that can never work, or of AckLog; what happens to requests is in the result. It must be called once.
func (l *Load) Run(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	senders, closeAll, err := l.senders()
	if err != nil {
		return Result{}, err
	}
	l.pace.begin()
	begin := time.Now()
	var running sync.WaitGroup
	for i, s := range senders {
		running.Go(func() { l.loop(ctx, i, s) })
	}
	running.Wait()
	result := l.Snapshot()
	result.Elapsed = time.Since(begin)
	l.logMu.Lock()
	defer l.logMu.Unlock()
	return result, errors.Join(l.logErr, closeAll())
}

// Snapshot is the result so far.
func (l *Load) Snapshot() Result { return l.tally.snapshot() }

// senders opens one connection for each sender, as separate clients have. closeAll is only set without an error.
func (l *Load) senders() (senders []sender, closeAll func() error, err error) {
	closeAll = func() error {
		var errs []error
		for _, s := range senders {
			errs = append(errs, s.close())
		}
		return errors.Join(errs...)
	}
	for range l.cfg.Senders {
		if l.cfg.GRPC != "" {
			s, err := newGRPCSender(l.cfg.GRPC, l.cfg.Compression)
			if err != nil {
				return nil, nil, errors.Join(fmt.Errorf("open gRPC sender: %w", err), closeAll())
			}
			senders = append(senders, s)
		}
		if l.cfg.HTTP != "" {
			s, err := newHTTPSender(l.cfg.HTTP, l.cfg.Compression)
			if err != nil {
				return nil, nil, errors.Join(fmt.Errorf("open HTTP sender: %w", err), closeAll())
			}
			senders = append(senders, s)
		}
	}
	return senders, closeAll, nil
}

// loop is one sender.
func (l *Load) loop(ctx context.Context, number int, s sender) {
	var body []byte
	for i := number; ; i++ {
		n := l.started.Add(1)
		if l.cfg.Requests > 0 && n > l.cfg.Requests {
			return
		}
		due, ok := l.pace.wait(ctx, n-1)
		if !ok {
			return
		}
		first := l.cfg.Sequence.Take(l.cfg.Records)
		signal := l.cfg.Signals[i%len(l.cfg.Signals)]
		body = l.generator.Append(body[:0], signal, i/len(l.cfg.Signals), first)
		for {
			ok, after := l.send(ctx, s, signal, body, first, due)
			if ok {
				break
			}
			if !pause(ctx, max(failurePause, after)) {
				return
			}
			if !l.cfg.Retry {
				body = nil // the transport may still be reading it
				break
			}
			l.tally.resend()
		}
	}
}

// send makes one attempt and reports whether it was acknowledged, or after when the answer asks to try again. It goes to its end also if ctx ends meanwhile: an
// answer that is on its way must not be missed.
func (l *Load) send(ctx context.Context, s sender, signal segment.Signal, body []byte, first uint64, due time.Time) (ok bool, after time.Duration) {
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.Timeout)
	defer cancel()
	failure, after := s.send(attempt, signal, body)
	if failure != "" {
		l.tally.failed(failure)
		return false, after
	}
	took := time.Since(due)
	l.cfg.Acked.AddRange(first, l.cfg.Records)
	if l.cfg.OnAck != nil {
		l.cfg.OnAck(first, l.cfg.Records)
	}
	l.tally.acked(l.cfg.Records, len(body), took)
	if l.cfg.AckLog != nil {
		l.logMu.Lock()
		defer l.logMu.Unlock()
		if _, err := fmt.Fprintln(l.cfg.AckLog, first, l.cfg.Records); err != nil && l.logErr == nil {
			l.logErr = fmt.Errorf("write ack log: %w", err)
		}
	}
	return true, 0
}

// pause is false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
