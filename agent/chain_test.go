package agent_test

import (
	"net/http"
	"testing"
	"time"

	"ingest-agent/agent/agenttest"
	"ingest-agent/agent/config"
	"ingest-agent/bench/load"
	"ingest-agent/segment"
)

// onlyDestination changes the one destination that newConfig makes.
func onlyDestination(change func(d *config.Destination)) func(*config.Config) {
	return func(c *config.Config) {
		d := c.Destinations[config.DefaultDestination]
		change(&d)
		c.Destinations[config.DefaultDestination] = d
	}
}

// TestCase44TwoAgentsInARow: while the second agent is full, it says when to come again, and the first one comes again, on
// either transport. Nothing is set aside, dropped or lost.
func TestCase44TwoAgentsInARow(t *testing.T) {
	t.Parallel()
	for _, kind := range []config.DestinationType{config.OTLPHTTP, config.OTLPGRPC} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewSink(t)
			second := start(t, newConfig(t, t.TempDir(), s.URL(), func(c *config.Config) { c.WAL.MaxBytes, c.WAL.FullWait = 2<<20, 0 }))
			first := start(t, newConfig(t, t.TempDir(), "http://"+second.Addrs().HTTP, onlyDestination(func(d *config.Destination) {
				if d.Type = kind; kind == config.OTLPGRPC {
					d.Endpoint, d.TLS.Insecure = second.Addrs().GRPC, true
				}
				d.MaxRequestSizeBytes = 256 << 10
			})))
			acked := agenttest.Send(t, load.Config{HTTP: first.Addrs().HTTP, GRPC: first.Addrs().GRPC, Senders: 2, Requests: 60, Records: 100, Seed: 4})
			refused := func() uint64 {
				return agenttest.Scrape(t, second.Addrs().Admin).Sum("requests_refused_total", `reason="full"`)
			}
			agenttest.Await(t, 20*time.Second, "the second agent is full", func() bool { return refused() > 0 })
			if first.pending() == (segment.Totals{}) {
				t.Fatal("the first agent has nothing left: the test needs more data")
			}
			agenttest.Up(t, s)
			first.awaitDrained(40 * time.Second)
			second.awaitDrained(20 * time.Second)
			agenttest.Same(t, "delivered", s.Received(), acked)
			for _, n := range []*node{first, second} {
				m := n.metrics()
				if dead, lost := m.Sum("records_dead_letter_total"), m.Sum("records_lost_total"); dead+lost > 0 {
					t.Errorf("%d dead letters, %d lost", dead, lost)
				}
			}
			if code, _ := second.post(body(t, 1<<30)); code != http.StatusOK {
				t.Errorf("the second agent still answers %d", code)
			}
			second.awaitDrained(20 * time.Second)
			first.stop()
			second.stop()
		})
	}
}
