package s3_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"ingest-agent/objstore"
	"ingest-agent/objstore/s3"
	"ingest-agent/objstore/s3/s3test"
)

// crashRounds is how often a server or a writer is killed.
const crashRounds = 6

// bodyOf is what is written under a key: as long as it is, so that a part of it is not taken for the whole.
func bodyOf(key string) string { return strings.Repeat(key+"\n", 2000+len(key)) }

// wantConfirmed fails unless all that was confirmed is there, and all that is there is whole.
func wantConfirmed(t *testing.T, b objstore.Bucket, confirmed map[string]objstore.Version) {
	t.Helper()
	ctx := context.Background()
	listed := map[string]objstore.Version{}
	for o := (objstore.ListOptions{}); ; {
		page, err := b.List(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range page.Objects {
			listed[info.Key] = info.Version
			if body, err := read(b, info.Key); err != nil || body != bodyOf(info.Key) {
				t.Errorf("%s is not whole: %d bytes, %v", info.Key, len(body), err)
			}
		}
		if o.Token = page.Next; o.Token == "" {
			break
		}
	}
	for key, version := range confirmed {
		if listed[key] != version {
			t.Errorf("%s was confirmed as version %q and is %q", key, version, listed[key])
		}
	}
}

// TestCrashServer kills the server when writes have been confirmed and others are on their way.
func TestCrashServer(t *testing.T) {
	const writers = 4
	seed := uint64(1)
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	server := s3test.Start(t)
	b := server.Open(t, "crash", s3.Options{})
	var mu sync.Mutex
	confirmed := map[string]objstore.Version{}
	for round := range crashRounds {
		ctx, stop := context.WithCancel(context.Background())
		kill := make(chan struct{})
		var once sync.Once
		after := len(confirmed) + 1 + random.IntN(40)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				defer once.Do(func() { close(kill) }) // also when it has failed: nobody is waited for in vain
				for i := 0; ctx.Err() == nil; i++ {
					key := fmt.Sprintf("%d/%d/%d", round, w, i)
					result, err := b.Put(ctx, key, strings.NewReader(bodyOf(key)), objstore.IfAbsent())
					if err != nil {
						if !errors.Is(err, objstore.ErrUnknown) {
							t.Errorf("put %s: %v", key, err)
						}
						return // the server is gone
					}
					mu.Lock()
					confirmed[key] = result.Version
					if len(confirmed) >= after {
						once.Do(func() { close(kill) })
					}
					mu.Unlock()
				}
			})
		}
		<-kill
		server.Kill9()
		stop()
		wg.Wait()
		server.Restart()
		wantConfirmed(t, b, confirmed)
	}
	if len(confirmed) < crashRounds {
		t.Errorf("only %d writes were confirmed", len(confirmed))
	}
}

// TestCrashWriter kills a process that writes, when it has said that writes were confirmed. What it was writing is there
// whole or not at all, also of a body in parts.
func TestCrashWriter(t *testing.T) {
	seed := uint64(1)
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	server := s3test.Start(t)
	b := server.Open(t, "crash", s3.Options{})
	confirmed := map[string]objstore.Version{}
	for round := range crashRounds {
		writer := exec.Command(os.Args[0])
		writer.Env = append(server.Env(), writerURL+"="+server.URL("crash"), writerRound+"="+strconv.Itoa(round))
		writer.Stderr = os.Stderr
		stdout, err := writer.StdoutPipe()
		if err == nil {
			err = writer.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		killAt := 1 + random.IntN(30)
		lines := bufio.NewScanner(stdout)
		for n := 0; lines.Scan(); n++ {
			key, version, _ := strings.Cut(lines.Text(), " ")
			confirmed[key] = objstore.Version(version)
			if n == killAt {
				if err := writer.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
		}
		if err := writer.Wait(); err == nil || writer.ProcessState.Exited() {
			t.Fatalf("the writer ended by itself: %v", err)
		}
		wantConfirmed(t, b, confirmed)
	}
}

// The variables by which this program is the writer.
const (
	writerURL   = "S3_TEST_WRITER_URL"
	writerRound = "S3_TEST_WRITER_ROUND"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(writerURL); url != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(url, os.Getenv(writerRound)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeUntilKilled names every write on standard output when it is confirmed.
func writeUntilKilled(url, round string) error {
	b, err := s3.Open(context.Background(), url, s3.Options{})
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		key := fmt.Sprintf("writer/%s/%d", round, i)
		result, err := put(b, key, bodyOf(key), objstore.IfAbsent())
		if err != nil {
			return err
		}
		fmt.Printf("%s %s\n", key, result.Version)
	}
}
