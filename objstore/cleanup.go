package objstore

import (
	"context"
	"time"
)

const (
	// cleanupLimit bounds the removal of what is half done.
	cleanupLimit = 5 * time.Second
	// cleanupGrace is how long it goes on behind the end of the caller's context. A stop waits for that, so it is short; what is
	// left by then is found by sweeps, or said in an error.
	cleanupGrace = 500 * time.Millisecond
)

// Cleanup returns a context to clean up in. It lives for half a second longer than the caller's, or from now where that has
// ended, and for 5 seconds at most.
func Cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	grace := time.AfterFunc(cleanupLimit, cancel)
	stop := context.AfterFunc(ctx, func() { grace.Reset(cleanupGrace) })
	return end, func() {
		stop()
		grace.Stop()
		cancel()
	}
}
