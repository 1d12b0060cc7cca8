package child

import "time"

// Usage is what a process has used since its start.
type Usage struct {
	CPU           time.Duration // of all its threads, user and system
	ResidentBytes int64         // memory now
	PeakBytes     int64         // most memory at once
	WrittenBytes  int64         // caused to be written to disks; 0 on file systems without a disk
}
