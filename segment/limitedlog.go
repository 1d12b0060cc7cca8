package segment

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// limitedLog writes one line per kind and minute, with how many were left out.
type limitedLog struct {
	log  *zap.Logger
	mu   sync.Mutex
	last map[string]time.Time
	left map[string]int
}

const logInterval = time.Minute

func newLimitedLog(log *zap.Logger) *limitedLog {
	return &limitedLog{log: log, last: map[string]time.Time{}, left: map[string]int{}}
}

func (l *limitedLog) Warn(kind, msg string, f ...zap.Field)  { l.write(zap.WarnLevel, kind, msg, f) }
func (l *limitedLog) Error(kind, msg string, f ...zap.Field) { l.write(zap.ErrorLevel, kind, msg, f) }

func (l *limitedLog) write(level zapcore.Level, kind, msg string, f []zap.Field) {
	l.mu.Lock()
	now := time.Now()
	if last, ok := l.last[kind]; ok && now.Sub(last) < logInterval {
		l.left[kind]++
		l.mu.Unlock()
		return
	}
	left := l.left[kind]
	l.last[kind], l.left[kind] = now, 0
	l.mu.Unlock()
	if left > 0 {
		f = append(f, zap.Int("not_shown", left))
	}
	l.log.Log(level, msg, f...)
}
