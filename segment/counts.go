package segment

import (
	"encoding/json"
	"fmt"
)

// Counts holds one number of records for each signal, in the order of Signals.
type Counts [NumSignals]uint64

// Of returns a Counts with n records of one signal.
func (s Signal) Of(n uint64) (c Counts) {
	c[s.Index()] = n
	return c
}

// Add returns c + o.
func (c Counts) Add(o Counts) Counts {
	for i := range c {
		c[i] += o[i]
	}
	return c
}

// Sub returns c - o, and 0 where o is larger.
func (c Counts) Sub(o Counts) Counts {
	for i := range c {
		c[i] -= min(c[i], o[i])
	}
	return c
}

// Max returns the larger of the two for each signal.
func (c Counts) Max(o Counts) Counts {
	for i := range c {
		c[i] = max(c[i], o[i])
	}
	return c
}

// Sum is the number of records of all signals.
func (c Counts) Sum() (n uint64) {
	for _, v := range c {
		n += v
	}
	return n
}

// MarshalJSON writes {"logs":1,"traces":2,"metrics":3}.
func (c Counts) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"logs":%d,"traces":%d,"metrics":%d}`, c[0], c[1], c[2]), nil
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (c *Counts) UnmarshalJSON(data []byte) error {
	var named struct{ Logs, Traces, Metrics uint64 }
	if err := json.Unmarshal(data, &named); err != nil {
		return err
	}
	*c = Counts{named.Logs, named.Traces, named.Metrics}
	return nil
}

// Totals counts what ever entered a lane up to some point of it, since the lane's first frame in this data directory. The
// difference of two is exactly what lies between the points, also when the bytes between them are damaged or gone.
type Totals struct {
	Frames  uint64 `json:"frames"`
	Records Counts `json:"records"`
	Bytes   uint64 `json:"bytes"` // of bodies, before compression
}

// Add returns t + o.
func (t Totals) Add(o Totals) Totals {
	return Totals{t.Frames + o.Frames, t.Records.Add(o.Records), t.Bytes + o.Bytes}
}

// Sub returns t - o, and 0 where o is larger.
func (t Totals) Sub(o Totals) Totals {
	return Totals{t.Frames - min(t.Frames, o.Frames), t.Records.Sub(o.Records), t.Bytes - min(t.Bytes, o.Bytes)}
}

// Max returns the larger of the two for each number.
func (t Totals) Max(o Totals) Totals {
	return Totals{max(t.Frames, o.Frames), t.Records.Max(o.Records), max(t.Bytes, o.Bytes)}
}

// Totals is what the frame adds.
func (f *Frame) Totals() Totals {
	return Totals{Frames: 1, Records: f.Signal.Of(uint64(f.Records)), Bytes: uint64(len(f.Body))}
}
