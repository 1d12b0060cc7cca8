package segment

import "fmt"

// Signal is one of the three OTLP signals. The values are part of the frame format (docs/format.md).
type Signal uint8

// The signals, in the order in which every count by signal is stored.
const (
	Logs    Signal = 1
	Traces  Signal = 2
	Metrics Signal = 3
)

// NumSignals is how many signals there are; counts by signal are arrays of this size.
const NumSignals = 3

// Signals lists all signals in storage order.
var Signals = [NumSignals]Signal{Logs, Traces, Metrics}

// Valid reports whether s is a known signal.
func (s Signal) Valid() bool { return s >= Logs && s <= Metrics }

// Index is the place of s in an array of counts by signal. It must only be called on a valid signal.
func (s Signal) Index() int { return int(s) - 1 }

// String is the name that OTLP uses in paths: logs, traces, metrics.
func (s Signal) String() string {
	switch s {
	case Logs:
		return "logs"
	case Traces:
		return "traces"
	case Metrics:
		return "metrics"
	}
	return fmt.Sprintf("signal(%d)", uint8(s))
}

// ParseSignal is the inverse of String.
func ParseSignal(name string) (Signal, error) {
	for _, s := range Signals {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("parse signal %q: not one of logs, traces, metrics", name)
}
