package filestore

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ingest-agent/objstore"
)

// TestSyncsOfAPut watches the system calls of a process that replaces an object: the kernel is asked for each sync, in the
// order that the commit point needs.
func TestSyncsOfAPut(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skipf("system calls cannot be seen here: %v", err)
	}
	if out, err := exec.Command(strace, "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("system calls may not be seen here: %v: %s", err, out)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	ok(t, err)
	put(t, open(t, dir), "d/k", oldBody, objstore.Condition{})
	trace := filepath.Join(t.TempDir(), "trace")
	child := command("replace", dir, 0)
	cmd := exec.Command(strace, "-f", "-qq", "-y", "-s", "4096", "-o", trace, "-e", "trace=fsync,fdatasync,rename,renameat,renameat2", child.Path)
	cmd.Dir, cmd.Env = child.Dir, child.Env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(trace)
	ok(t, err)
	call := regexp.MustCompile(`(sync|rename)[a-z0-9]*\(.*?(?:\d<|")` + regexp.QuoteMeta(dir) + `([^>"]*)[>"]`)
	var got []string
	for line := range strings.Lines(string(b)) {
		if m := call.FindStringSubmatch(line); m != nil {
			path := m[2]
			if strings.HasPrefix(path, "/"+reservedDir+"/"+tempDir+"/") {
				path = "temp"
			}
			got = append(got, m[1]+" "+path)
		}
	}
	// The first syncs are those of a process that uses the store for the first time.
	want := []string{"sync ", "sync temp", "rename temp", "sync /d", "sync "}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q in\n%s", got, want, b)
	}
	if got := get(t, open(t, dir), "d/k"); got != newBody {
		t.Errorf("got %q", got)
	}
}
