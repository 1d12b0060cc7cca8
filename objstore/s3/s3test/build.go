//go:build unix

package s3test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// binary returns the path of a server's program, which it builds where there is none of these sources yet.
func binary(k kind) (string, error) {
	folder, err := sourceFolder()
	if err != nil {
		return "", err
	}
	key, err := sourcesKey(folder, k.module)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "ingest-agent-testserver")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("create cache: %w", err)
	}
	path := filepath.Join(cache, k.name+"-"+key)
	unlock, err := lock(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	building := path + ".building"
	build := exec.Command("go", "build", "-modfile="+k.module+".mod", "-o", building, k.program) //nolint:gosec,noctx // of the table below
	build.Dir = folder
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s in %s: %w\n%s", k.program, folder, err, out)
	}
	if err := os.Rename(building, path); err != nil {
		return "", fmt.Errorf("keep what was built: %w", err)
	}
	return path, nil
}

// lock makes the tests of other packages wait that want to build the same.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // nothing was written to it
}

// sourceFolder finds the module of the servers: tests run in the folder of their package.
func sourceFolder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find test server: %w", err)
	}
	for {
		folder := filepath.Join(dir, "objstore", "s3", "testserver")
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("find test server: its sources are not above the working directory")
		}
		dir = up
	}
}

// sourcesKey names a state of the sources, with the Go version.
func sourcesKey(folder, module string) (string, error) {
	sources, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return "", fmt.Errorf("list sources: %w", err)
	}
	sources = append(sources, filepath.Join(folder, module+".mod"), filepath.Join(folder, module+".sum"))
	h := sha256.New()
	h.Write([]byte(runtime.Version()))
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			return "", fmt.Errorf("read source: %w", err)
		}
		fmt.Fprintf(h, "\n%s %d\n", filepath.Base(source), len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
