package objstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// ProbeValid is how long a good result of a probe is remembered.
const ProbeValid = 24 * time.Hour

// remembered is the file that RememberProbe writes, as JSON.
type remembered struct {
	Bucket string      `json:"bucket"` // the URL, which has no secrets
	Probed time.Time   `json:"probed"` // by this machine's clock
	Result ProbeResult `json:"result"`
}

// RememberProbe keeps what a probe of a bucket URL has found in the file at path, so that a restart within ProbeValid need
// not probe again. A bad result is not kept: somebody may have mended the store, and is told so at the next start. Commit
// point: the rename of the written file to path. It is not synced: what a power cut takes is probed again.
func RememberProbe(path, bucketURL string, r ProbeResult) error {
	if !r.OK {
		return nil
	}
	text, err := json.Marshal(remembered{Bucket: bucketURL, Probed: time.Now().UTC(), Result: r})
	if err != nil {
		return fmt.Errorf("remember probe: %w", err)
	}
	next := path + ".new"
	if err = os.WriteFile(next, append(text, '\n'), 0o600); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return fmt.Errorf("remember probe: %w", err)
	}
	return nil
}

// RecallProbe returns what RememberProbe has kept. There is nothing to recall in a file that is missing, damaged, of another
// bucket, older than ProbeValid or of the future: whatever is wrong, a probe finds out.
func RecallProbe(path, bucketURL string) (r ProbeResult, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return ProbeResult{}, false
	}
	var kept remembered
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields() // perhaps of a later version, in which the rest has another meaning
	if decoder.Decode(&kept) != nil || !kept.Result.OK || kept.Bucket != bucketURL {
		return ProbeResult{}, false
	}
	age := time.Since(kept.Probed)
	return kept.Result, age >= 0 && age < ProbeValid
}
