package child

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc (USER_HZ), which is the same on all architectures that Go knows.
const tick = 10 * time.Millisecond

// Usage reads what the process has used so far from /proc.
func (p *Process) Usage() (u Usage, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.ID()))
	if err != nil {
		return u, fmt.Errorf("read usage: %w", err)
	}
	// The name of the program, in parentheses, may hold anything; utime and stime are the 12th and 13th field after it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return u, fmt.Errorf("read usage: %d fields", len(fields))
	}
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, fmt.Errorf("read usage: %w", err)
		}
		u.CPU += time.Duration(n) * tick
	}
	for _, want := range []struct {
		file, key string
		unit      int64
		value     *int64
	}{
		{"status", "VmRSS:", 1 << 10, &u.ResidentBytes},
		{"status", "VmHWM:", 1 << 10, &u.PeakBytes},
		{"io", "write_bytes:", 1, &u.WrittenBytes},
	} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.ID(), want.file))
		if err != nil {
			return u, fmt.Errorf("read usage: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			value, found := strings.CutPrefix(line, want.key)
			if !found {
				continue
			}
			n, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				return u, fmt.Errorf("read usage: %w", err)
			}
			*want.value = n * want.unit
		}
	}
	return u, nil
}
