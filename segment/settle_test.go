package segment

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBisectBudget(t *testing.T) {
	var b budget
	now := time.Now()
	spent := 0
	for b.spend(now) {
		spent += 2
	}
	if spent != bisectPerMinute {
		t.Errorf("%d requests at once, want %d", spent, bisectPerMinute)
	}
	spent = 0
	for range 10 * 60 * 20 { // steadily more than is granted: what is not granted is not owed
		now = now.Add(time.Minute / (60 * 20))
		if b.spend(now) {
			spent += 2
		}
	}
	if spent < 9*bisectPerMinute || spent > 10*bisectPerMinute {
		t.Errorf("%d requests in ten minutes, want about %d", spent, 10*bisectPerMinute)
	}
}

func TestLearnedSize(t *testing.T) {
	var l learnedSize
	now := time.Now()
	const configured = 4 << 20
	for _, c := range []struct {
		refused int
		want    int
	}{{0, configured}, {1 << 20, 512 << 10}, {3 << 20, 512 << 10}, {100 << 10, 50 << 10}, {10, minLearnedBytes}} {
		if c.refused > 0 {
			l.refused(c.refused, now)
		}
		if got := l.limit(configured, now); got != c.want {
			t.Errorf("after %d were refused: %d, want %d", c.refused, got, c.want)
		}
	}
	if got := l.limit(1<<10, now); got != 1<<10 {
		t.Errorf("a smaller limit of the configuration became %d", got)
	}
	if got := l.limit(configured, now.Add(learnedFor)); got != minLearnedBytes {
		t.Errorf("forgotten early: %d", got)
	}
	if got := l.limit(configured, now.Add(learnedFor+1)); got != configured {
		t.Errorf("kept for ever: %d", got)
	}
}

// A tenant of large requests and one of small ones get as many bytes sent, within two requests.
func TestTurnsAreFairInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := newGroups()
		push := func(tenant string, n, size int) {
			for i := range n {
				f := &Frame{Signal: Logs, Tenant: tenant, Records: 1, Body: make([]byte, size), Received: time.Now()}
				gs.push(&slot{frame: f, next: Position{1, Entry(i + 2)}})
			}
		}
		push("large", 200, 1000)
		push("small", 20000, 10)
		lim := Limits{InFlight: 1, MaxRequestBytes: 1000}
		sent := map[string]int{}
		noSplit := func(piece) (head, tail piece, ok bool) { return head, tail, false }
		for range 200 {
			a, _ := gs.next(time.Now(), &lim, noSplit)
			if a == nil {
				t.Fatal("nothing to send")
			}
			sent[a.group.key.tenant] += a.size()
			gs.landed(a)
			if d := sent["large"] - sent["small"]; d > 2*lim.MaxRequestBytes || -d > 2*lim.MaxRequestBytes {
				t.Fatalf("large %d bytes, small %d", sent["large"], sent["small"])
			}
		}
	})
}
