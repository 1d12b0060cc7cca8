package objstore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
)

// TestCleanup: a cleanup outlives its caller by a moment, and never takes longer than its limit.
func TestCleanup(t *testing.T) {
	for _, test := range []struct {
		name       string
		callerEnds time.Duration // 0: at once
		want       time.Duration
	}{
		{"ended before", 0, 500 * time.Millisecond},
		{"ends meanwhile", time.Second, 1500 * time.Millisecond},
		{"ends near the limit", 4900 * time.Millisecond, 5 * time.Second},
		{"goes on", time.Hour, 5 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				caller, end := context.WithTimeout(t.Context(), test.callerEnds)
				defer end()
				ctx, cancel := objstore.Cleanup(caller)
				<-ctx.Done()
				if took := time.Since(begun); took != test.want {
					t.Errorf("lived for %v, want %v", took, test.want)
				}
				cancel()
			})
		})
	}
}
