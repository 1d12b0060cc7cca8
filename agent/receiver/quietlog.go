package receiver

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// logEvery is how often one kind of trouble is logged: clients can cause it at any rate.
const logEvery = 10 * time.Second

// quietLog logs requests that were refused for our own trouble, each kind of it at most once per logEvery, with the number of times that it was left out.
type quietLog struct {
	log   *zap.Logger
	mu    sync.Mutex
	kinds map[string]*kindSeen // few: the reasons of refusal.go and of the lanes
}

type kindSeen struct {
	last    time.Time
	omitted int
}

func newQuietLog(log *zap.Logger) *quietLog {
	return &quietLog{log: log, kinds: make(map[string]*kindSeen)}
}

func (q *quietLog) refused(kind string, fields ...zap.Field) {
	omitted, due := q.due(kind)
	if due {
		q.log.Warn("request refused", append(fields, zap.String("reason", kind), zap.Int("omitted", omitted))...)
	}
}

// connectionClosed says that a listener has maxConnections open and closed a new one.
func (q *quietLog) connectionClosed(listener string) {
	if omitted, due := q.due("connections of " + listener); due {
		q.log.Warn("connection closed: too many are open", zap.String("listener", listener), zap.Int("open", maxConnections), zap.Int("omitted", omitted))
	}
}

func (q *quietLog) due(kind string) (omitted int, due bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	seen := q.kinds[kind]
	if seen == nil {
		seen = new(kindSeen)
		q.kinds[kind] = seen
	}
	if now := time.Now(); seen.last.IsZero() || now.Sub(seen.last) >= logEvery {
		omitted, seen.omitted, seen.last = seen.omitted, 0, now
		return omitted, true
	}
	seen.omitted++
	return 0, false
}
