//go:build !linux

package limit

import "os"

// dataSync syncs the whole file: there is no portable way to leave its times out.
func dataSync(f *os.File) error { return f.Sync() }
