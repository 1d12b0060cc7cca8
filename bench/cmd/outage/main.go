//go:build unix

// Command outage sends more to an agent than its disk holds, while the destination is down, and says what that came to: that
// everything was taken, how fast against the bucket's own rate, what the disk and the memory took, and that everything was
// delivered after.
//
// It exits with 1 if something is missing, came twice, or is left in the bucket, if the disk's limit was passed, or if it was taken
// at less than -least of the bucket's own rate.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"ingest-agent/bench/child"
	"ingest-agent/bench/freeport"
	"ingest-agent/bench/load"
	"ingest-agent/bench/sink"
	"ingest-agent/objstore"
	"ingest-agent/objstore/s3"
	"ingest-agent/objstore/s3/s3test"
	"ingest-agent/objstore/stores"
)

const (
	mib        = 1 << 20
	sideBySide = 2 // objects at once: one for each of the agent's two lanes
	readyIn    = 10 * time.Second
	drainedIn  = 10 * time.Minute
	every      = 50 * time.Millisecond
)

// outage is one run.
type outage struct {
	bin, dir, url   string
	env             []string // the agent's; nil: this process's
	credentials     aws.CredentialsProvider
	diskMiB, allMiB int64
	senders         int
	least           float64
	quarters        []int64 // resident memory when so many quarters were taken
	http, admin     string
	sink            *sink.Sink
	agent           *child.Process

	mu                sync.Mutex
	mostDisk, mostRSS int64
}

func main() {
	ok, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "outage:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run() (ok bool, err error) {
	o := &outage{}
	flag.StringVar(&o.bin, "bin", "", "`path` of the agent")
	bucket := flag.String("bucket", "file", "where to ship: file (a directory), s3 (a real S3 server, started here)")
	flag.Int64Var(&o.diskMiB, "disk", 64, "wal.max_bytes in `MiB`")
	flag.Int64Var(&o.allMiB, "send", 1024, "how much is sent, in `MiB` of OTLP")
	flag.IntVar(&o.senders, "senders", 16, "number of senders")
	flag.Float64Var(&o.least, "least", 0, "the least `percentage` of the bucket's own rate at which it is taken")
	rate := flag.Float64("rate", 0, "how much the way to the S3 server carries, in `MiB/s`; 0: all there is")
	latency := flag.Duration("latency", 0, "how much longer each request to the S3 server takes, with -rate")
	flag.Parse()
	if o.bin, err = filepath.Abs(o.bin); err != nil || o.bin == "" {
		return false, errors.Join(errors.New("-bin is missing: the path of the agent"), err)
	}
	if o.dir, err = os.MkdirTemp("", "outage-"); err != nil {
		return false, fmt.Errorf("make directory: %w", err)
	}
	defer func() {
		if ok {
			err = errors.Join(err, os.RemoveAll(o.dir))
		} else {
			fmt.Fprintln(os.Stderr, "data and log are in", o.dir)
		}
	}()
	switch *bucket {
	case "file":
		o.url = "file:" + filepath.Join(o.dir, "bucket")
	case "s3":
		server, stop, err := s3test.StartOutside()
		if err != nil {
			return false, err
		}
		defer stop()
		o.url, o.env = server.URL("outage"), server.Env()
		o.credentials = server.Credentials()
		if *rate > 0 {
			var way *link
			if way, o.url, err = startLink(o.url, *rate*mib, *latency); err != nil {
				return false, err
			}
			defer func() { err = errors.Join(err, way.close()) }()
		}
	default:
		return false, fmt.Errorf("-bucket=%s: allowed are file, s3", *bucket)
	}
	if o.sink, err = sink.New(sink.Config{}); err != nil {
		return false, fmt.Errorf("make sink: %w", err)
	}
	ports, err := freeport.Pick(2)
	if err != nil {
		return false, fmt.Errorf("find ports: %w", err)
	}
	o.http, o.admin = ports[0], ports[1]
	own, err := o.bucketRate(context.Background())
	if err != nil {
		return false, err
	}
	return o.measure(own)
}

// bucketRate is how fast the bucket takes objects of the size that the agent's will have, in bytes a second.
func (o *outage) bucketRate(ctx context.Context) (float64, error) {
	b, err := stores.Open(ctx, o.url, stores.Options{S3: s3.Options{Credentials: o.credentials}})
	if err != nil {
		return 0, fmt.Errorf("open bucket: %w", err)
	}
	size := o.diskMiB * mib / 16 // an eighth of a lane's share of the disk
	body := bytes.Repeat([]byte("0123456789abcdef"), int(size/16))
	n := int(min(o.allMiB, 256) * mib / size)
	begun := time.Now()
	var failed [sideBySide]error
	var all sync.WaitGroup
	for i := range sideBySide {
		all.Go(func() {
			for k := i; k < n && failed[i] == nil; k += sideBySide {
				_, failed[i] = b.Put(ctx, fmt.Sprintf("inbox/rate/%d/%d", i, k), bytes.NewReader(body), objstore.IfAbsent())
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	err = errors.Join(failed[:]...)
	for i := range n {
		err = errors.Join(err, b.Delete(ctx, fmt.Sprintf("inbox/rate/%d/%d", i%sideBySide, i)))
	}
	if err = errors.Join(err, b.Close()); err != nil {
		return 0, fmt.Errorf("measure bucket: %w", err)
	}
	return float64(n) * float64(size) / took.Seconds(), nil
}

func (o *outage) start() error {
	text := fmt.Sprintf(`data_dir: %q
receivers: {grpc: {endpoint: "127.0.0.1:0"}, http: {endpoint: %q}}
admin: {endpoint: %q}
wal: {max_bytes: %dMiB, min_free_bytes: 0, full_wait: 1s}
destinations: {default: {type: otlp_http, endpoint: %q, compression: none, retry: {max_interval: 1s}}}
bucket: {url: %q}
`, filepath.Join(o.dir, "data"), o.http, o.admin, o.diskMiB, o.sink.URL(), o.url)
	path := filepath.Join(o.dir, "agent.yaml")
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	var err error
	cmd := exec.Command(o.bin, "run", "--config", path)
	cmd.Env = o.env
	o.agent, err = child.Start(cmd, filepath.Join(o.dir, "agent.log"))
	return err
}

func (o *outage) measure(own float64) (ok bool, err error) {
	if err := o.start(); err != nil {
		return false, err
	}
	defer func() {
		o.agent.Kill()
		<-o.agent.Exited()
	}()
	watch, stop := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { o.watch(watch) })
	defer watching.Wait()
	defer stop()
	if err := o.await(readyIn, "the agent is ready", o.ready); err != nil {
		return false, err
	}
	taken, l, err := o.send()
	if err != nil {
		return false, err
	}
	memory := o.most(&o.mostRSS)
	begun := time.Now()
	if err := o.sink.Up(); err != nil {
		return false, fmt.Errorf("start sink: %w", err)
	}
	if err := o.await(drainedIn, "all is delivered", func() bool { return o.missing(l) == 0 }); err != nil {
		return false, err
	}
	drained := time.Since(begun)
	if err := o.await(drainedIn, "the bucket is empty", o.emptied); err != nil {
		return false, err
	}
	return o.tell(own, &taken, l, drained, memory), nil
}

// send sends until enough is acknowledged.
func (o *outage) send() (load.Result, *load.Load, error) {
	l, err := load.New(load.Config{HTTP: o.http, Senders: o.senders, Records: 500, Timeout: time.Minute, Retry: true, Seed: 1})
	if err != nil {
		return load.Result{}, nil, fmt.Errorf("prepare load: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { // ends with the load
		tick := time.NewTicker(every)
		defer tick.Stop()
		for ctx.Err() == nil {
			acked := l.Snapshot().AckedBytes
			if all := uint64(o.allMiB * mib); acked >= all {
				cancel()
			} else if int(4*acked/all) > len(o.quarters) {
				o.quarters = append(o.quarters, o.rss())
			}
			<-tick.C
		}
	})
	r, err := l.Run(ctx)
	return r, l, err
}

// missing is how many acknowledged records have not arrived.
func (o *outage) missing(l *load.Load) uint64 {
	n, _ := l.Acked().Minus(o.sink.Received(), 0)
	return n
}

func (o *outage) tell(own float64, r *load.Result, l *load.Load, drained time.Duration, memory int64) bool {
	st := o.sink.Stats()
	rate := float64(r.AckedBytes) / r.Elapsed.Seconds()
	missing := o.missing(l)
	disk := o.most(&o.mostDisk)
	fmt.Printf("bucket's own rate     %8.1f MiB/s\n", own/mib)
	fmt.Printf("taken                 %8.1f MiB/s, %.0f %% of that; %d MiB in %.1f s, %d refusals %v\n",
		rate/mib, 100*rate/own, r.AckedBytes/mib, r.Elapsed.Seconds(), r.Failed(), r.Failures)
	fmt.Printf("answer                p50 %v, p99 %v\n", r.Latency.Quantile(0.5).Round(time.Millisecond), r.Latency.Quantile(0.99).Round(time.Millisecond))
	objects := o.metric("shipped_objects_total")
	fmt.Printf("shipped               %8.0f objects, of %.1f MiB\n", objects, o.metric("shipped_bytes_total")/mib/max(objects, 1))
	fmt.Printf("disk                  %8.1f MiB at most, of %d\n", float64(disk)/mib, o.diskMiB)
	fmt.Printf("memory                %8.1f MiB at most while taking, %.1f in all;", float64(memory)/mib, float64(o.most(&o.mostRSS))/mib)
	for i, n := range o.quarters {
		fmt.Printf(" %.0f at %d/4", float64(n)/mib, i+1)
	}
	fmt.Println()
	fmt.Printf("delivered             %8.1f MiB/s after the outage, in %.1f s\n", float64(r.AckedBytes)/mib/drained.Seconds(), drained.Seconds())
	fmt.Printf("missing %d, duplicates %d\n", missing, st.Duplicates)
	return missing == 0 && st.Duplicates == 0 && disk <= o.diskMiB*mib && rate >= own*o.least/100
}
