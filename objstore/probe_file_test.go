package objstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/objstore"
)

const probedURL = "s3://bucket/prefix?region=eu-west-1"

// TestProbeRemembered keeps a good result for a day, and nothing else.
func TestProbeRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "probe.json")
		recalled := func(what, url string, want bool) {
			t.Helper()
			if r, ok := objstore.RecallProbe(path, url); ok != want || ok && !r.OK {
				t.Errorf("%s: got %+v, %t, want %t", what, r, ok, want)
			}
		}
		remember := func(r objstore.ProbeResult) {
			t.Helper()
			if err := objstore.RememberProbe(path, probedURL, r); err != nil {
				t.Fatal(err)
			}
		}
		recalled("no file", probedURL, false)
		remember(objstore.ProbeResult{Found: "broken"})
		recalled("a bad result", probedURL, false)
		remember(objstore.ProbeResult{OK: true, Date: time.Now()})
		time.Sleep(objstore.ProbeValid - time.Second)
		recalled("a good result", probedURL, true)
		recalled("another bucket's", probedURL+"&path_style=true", false)
		time.Sleep(time.Second)
		recalled("a day later", probedURL, false)
		remember(objstore.ProbeResult{OK: true, Date: time.Now()})
		recalled("a new one", probedURL, true)

		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		year := time.Now().UTC().Format(`"probed":"2006`)
		for what, text := range map[string]string{
			"empty":    "",
			"cut":      string(text[:len(text)/2]),
			"bad":      strings.Replace(string(text), `"ok":true`, `"ok":false`, 1),
			"later":    strings.Replace(string(text), `"bucket"`, `"format":2,"bucket"`, 1),
			"future":   strings.Replace(string(text), year, `"probed":"9999`, 1),
			"no probe": "{}",
		} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			recalled(what, probedURL, false)
		}
		if names, err := filepath.Glob(path + "*"); err != nil || len(names) != 1 {
			t.Errorf("left: %q, %v", names, err)
		}
		if objstore.RememberProbe(filepath.Join(path, "below a file"), probedURL, objstore.ProbeResult{OK: true}) == nil {
			t.Error("no error where nothing can be kept")
		}
	})
}
