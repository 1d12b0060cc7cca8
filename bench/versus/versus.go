// Package versus runs the agent and what a user would take instead on the same load and the same sink, in turns, and says what
// each took and delivered at which price.
//
// It guarantees that both are given the same requests by the same clients over the same transport, one after the other (ABAB),
// each in a fresh directory, and that a record counts as delivered when the sink has it, whoever says what. What was
// acknowledged and did not arrive, and what arrived twice, is in each row. The load and the sink run in this process and
// share the processors with what is measured: Row.HarnessCPU says how much they took, and where it is most of all, the row is
// a lower bound for the subject. It assumes a quiet machine, and subjects that sync before they answer; that it cannot see.
package versus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"ingest-agent/bench/child"
	"ingest-agent/bench/freeport"
	"ingest-agent/bench/load"
	"ingest-agent/bench/sink"
)

const (
	readyIn   = 20 * time.Second
	deliverIn = 5 * time.Minute
	stopIn    = 2 * time.Minute      // what is owed goes into the bucket
	every     = 5 * time.Millisecond // how often it is looked whether something has come
)

// Transports of Config.
const (
	GRPC = "grpc"
	HTTP = "http"
)

// Again says what happens to the subject between the backlog and the sink.
type Again string

// Values of Again.
const (
	Goes  Again = ""      // nothing
	Kill  Again = "kill"  // kill -9, and a start on the same directory
	Adopt Again = "adopt" // a stop, and the start of another with an empty directory and the same bucket
)

// Config of a comparison.
type Config struct {
	Dir         string // on the disk that is meant
	Transport   string // GRPC or HTTP, into the subject and out of it
	Compression string // wire.None, wire.Gzip, wire.Zstd: of the clients and of the subject
	Senders     int    // clients, each with one request at a time
	Records     int    // in a request
	Length      time.Duration
	Backlog     int64         // when not 0: bytes that are sent, as fast as they are taken, before the sink is up; Length is then not used
	DeliverIn   time.Duration // after the last answer; what has not arrived then is lost; default 5 minutes
	Again       Again         // with Backlog
	Rounds      int
	Seed        uint64
	Log         func(string) // of progress; may be nil
}

// Row is one round of one subject.
type Row struct {
	Subject     string
	Acked       uint64        // records answered with success
	Bytes       uint64        // of OTLP in them
	Refused     uint64        // requests that were not
	Sending     time.Duration // how long was sent
	Delivering  time.Duration // until all that was acknowledged had arrived, from the first request; of a backlog from the first record
	Starting    time.Duration // of the second start, until it takes connections
	Latency     load.Histogram
	CPU         time.Duration // of the subject, until all was delivered
	HarnessCPU  time.Duration // of the load and the sink, in that time
	PeakBytes   int64         // memory of the subject
	Written     int64         // bytes to disk by the subject
	PeakByParts []int64       // memory of the subject when so many fourths of a backlog were taken
	Lost        uint64        // acknowledged, but not delivered
	Duplicates  uint64
}

// Run is all rounds of all subjects, in the order in which they ran.
func Run(ctx context.Context, cfg Config, subjects ...Subject) ([]Row, error) {
	var rows []Row
	for round := range cfg.Rounds {
		for _, s := range subjects {
			row, err := measure(ctx, cfg, s)
			if err != nil {
				return rows, fmt.Errorf("measure %s: %w", s.Name, err)
			}
			if cfg.Log != nil {
				cfg.Log(fmt.Sprintf("round %d of %d: %s: %d records in %v, CPU %v, of the harness %v, lost %d, twice %d, refused %d", round+1,
					cfg.Rounds, s.Name, row.Acked, row.Delivering.Round(time.Millisecond), row.CPU, row.HarnessCPU, row.Lost, row.Duplicates, row.Refused))
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

func measure(ctx context.Context, cfg Config, s Subject) (row Row, err error) {
	dir, err := os.MkdirTemp(cfg.Dir, "versus-")
	if err != nil {
		return row, fmt.Errorf("make directory: %w", err)
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w (its data and log are in %s)", err, dir)
		}
	}()
	destination, err := sink.New(sink.Config{GRPC: "auto"})
	if err != nil {
		return row, fmt.Errorf("make sink: %w", err)
	}
	defer func() { err = errors.Join(err, destination.Down(true)) }()
	free, err := freeport.Pick(3)
	if err != nil {
		return row, fmt.Errorf("find ports: %w", err)
	}
	r := &round{cfg: cfg, subject: s, dir: dir, sink: destination, ports: Ports{
		GRPC: free[0], HTTP: free[1], Admin: free[2], Sink: destination.GRPCAddr(), Bucket: filepath.Join(dir, "bucket"),
	}}
	if cfg.Transport == HTTP {
		r.ports.Sink = destination.URL()
	}
	if err := r.start(ctx, "data"); err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	return r.run(ctx)
}

// round is a subject that is up.
type round struct {
	cfg     Config
	subject Subject
	dir     string
	ports   Ports
	process *child.Process
	sink    *sink.Sink
}

// start starts the subject with its data in a directory of that name and waits until it takes connections.
func (r *round) start(ctx context.Context, data string) error {
	cmd, err := r.subject.command(r.cfg, r.dir, filepath.Join(r.dir, data), r.ports)
	if err != nil {
		return err
	}
	if r.process, err = child.Start(cmd, filepath.Join(r.dir, "log")); err != nil {
		return err
	}
	err = await(ctx, r.process, readyIn, "is ready", func() bool { return listens(r.ports.GRPC) && listens(r.ports.HTTP) })
	if err != nil {
		return errors.Join(err, r.stop())
	}
	return nil
}

func (r *round) stop() error {
	r.process.Terminate()
	if r.process.Wait(stopIn) {
		return nil
	}
	r.process.Kill()
	<-r.process.Exited()
	return fmt.Errorf("it did not stop within %v", stopIn)
}

// again is what happens to the subject between the backlog and the sink.
func (r *round) again(ctx context.Context, row *Row) error {
	data := "data"
	switch r.cfg.Again {
	case Goes:
		return nil
	case Kill:
		r.process.Kill()
		<-r.process.Exited()
	case Adopt:
		if err := r.stop(); err != nil {
			return err
		}
		data = "other"
	}
	begun := time.Now()
	err := r.start(ctx, data)
	row.Starting = time.Since(begun)
	return err
}

func (r *round) run(ctx context.Context) (row Row, err error) {
	row.Subject = r.subject.Name
	l, err := r.load()
	if err != nil {
		return row, err
	}
	before, err := r.process.Usage()
	if err != nil {
		return row, err
	}
	harness := ownCPU()
	begun := time.Now()
	if r.cfg.Backlog == 0 {
		if err := r.sink.Up(); err != nil {
			return row, err
		}
	}
	sent, err := r.send(ctx, l, &row)
	if err != nil {
		return row, err
	}
	if r.cfg.Backlog > 0 {
		if err := r.again(ctx, &row); err != nil {
			return row, err
		}
		if err := r.sink.Up(); err != nil {
			return row, err
		}
		late := await(ctx, r.process, cmp.Or(r.cfg.DeliverIn, deliverIn), "has delivered something", func() bool { return r.sink.Stats().Requests > 0 })
		if late != nil {
			return row, late
		}
		begun = time.Now()
	}
	missing := func() uint64 { n, _ := l.Acked().Minus(r.sink.Received(), 0); return n }
	// To count takes a while, so it is only done when enough may have come.
	late := await(ctx, r.process, cmp.Or(r.cfg.DeliverIn, deliverIn), "has delivered all", func() bool {
		return r.sink.Stats().Distinct >= sent.AckedRecords && missing() == 0
	})
	row.Delivering = time.Since(begun)
	row.HarnessCPU = ownCPU() - harness
	after, err := r.process.Usage()
	if err != nil {
		return row, errors.Join(late, err)
	}
	row.Acked, row.Bytes, row.Refused = sent.AckedRecords, sent.AckedBytes, sent.Failed()
	row.Sending, row.Latency = sent.Elapsed, sent.Latency
	if r.cfg.Again != Goes {
		before = child.Usage{} // of the second process only
	}
	row.CPU, row.PeakBytes, row.Written = after.CPU-before.CPU, after.PeakBytes, after.WrittenBytes-before.WrittenBytes
	row.Lost, row.Duplicates = missing(), r.sink.Stats().Duplicates
	if row.Lost > 0 {
		return row, nil // the row says it
	}
	return row, late
}

func (r *round) load() (*load.Load, error) {
	cfg := load.Config{Senders: r.cfg.Senders, Records: r.cfg.Records, Compression: r.cfg.Compression, Seed: r.cfg.Seed,
		Timeout: time.Minute, Retry: r.cfg.Backlog > 0}
	if r.cfg.Transport == HTTP {
		cfg.HTTP = r.ports.HTTP
	} else {
		cfg.GRPC = r.ports.GRPC
	}
	l, err := load.New(cfg)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// send sends for Length, or until Backlog is taken.
func (r *round) send(ctx context.Context, l *load.Load, row *Row) (load.Result, error) {
	if r.cfg.Backlog == 0 {
		ctx, cancel := context.WithTimeout(ctx, r.cfg.Length)
		defer cancel()
		return l.Run(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- await(ctx, r.process, deliverIn, "has taken the backlog", func() bool {
			taken := l.Snapshot().AckedBytes
			if part := int(4 * taken / uint64(r.cfg.Backlog)); part > len(row.PeakByParts) {
				if u, err := r.process.Usage(); err == nil {
					row.PeakByParts = append(row.PeakByParts, u.PeakBytes)
				}
			}
			return taken >= uint64(r.cfg.Backlog)
		})
	}()
	result, err := l.Run(ctx)
	cancel()
	return result, errors.Join(err, <-ended)
}

// ownCPU is what this process has used of the processors.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// await looks until it is so, or the process ends, or the time is over.
func await(ctx context.Context, process *child.Process, limit time.Duration, what string, so func() bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !so(); {
		select {
		case <-tick.C:
		case <-process.Exited():
			return fmt.Errorf("wait until it %s: it ended: %w", what, process.Err())
		case <-ctx.Done():
			return fmt.Errorf("wait until it %s: %w", what, ctx.Err())
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wait until it %s: not within %v", what, limit)
		}
	}
	return nil
}
