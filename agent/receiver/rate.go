package receiver

import (
	"math"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

// burst is how long a tenant that sent nothing may exceed its rate: it may send what it could have sent in that time.
const burst = time.Second

// rate bounds what is accepted of one tenant. A request may take more than is there, whatever its size, and leaves a debt:
// the next ones wait until it is paid off. So the long-term rate holds, and no request is too large for it.
type rate struct {
	bytesPerSecond float64
	mu             sync.Mutex
	balanceBytes   float64
	last           time.Time
}

func newRates(bytesPerSecond map[string]int64) map[string]*rate {
	rates := make(map[string]*rate, len(bytesPerSecond))
	for tenant, n := range bytesPerSecond {
		if n > 0 {
			rates[tenant] = &rate{bytesPerSecond: float64(n), balanceBytes: float64(n) * burst.Seconds(), last: time.Now()}
		}
	}
	return rates
}

// take takes n bytes, or returns a refusal with the time until it would have worked. With n = 0 it only looks. A nil rate
// has no limit.
func (r *rate) take(n int) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.balanceBytes = min(r.balanceBytes+now.Sub(r.last).Seconds()*r.bytesPerSecond, r.bytesPerSecond*burst.Seconds())
	r.last = now
	if r.balanceBytes <= 0 {
		wait := -r.balanceBytes / r.bytesPerSecond
		return overRate(time.Duration(math.Ceil(wait*1000)+1) * time.Millisecond)
	}
	r.balanceBytes -= float64(n)
	return nil
}

// giveBack returns what was taken for a request that was then not accepted.
func (r *rate) giveBack(n int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.balanceBytes += float64(n)
}

func overRate(after time.Duration) *refusal {
	return &refusal{RefusedTenantRate, codes.ResourceExhausted, http.StatusTooManyRequests, after, "the tenant sends faster than it may", nil}
}
