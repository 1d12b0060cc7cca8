package config

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxDestinations bounds the destinations, each of which has its own lanes with open files and memory.
const maxDestinations = 256

// Beats are sent at least this often within stale_after: a holder stops acting at half of it, so three may be lost.
const beatsPerStale = 6

// check holds sections against each other. Rules of single values were checked when these were read.
func (l *loader) check(c *Config) {
	l.checkListeners(c)
	l.checkWAL(c)
	for _, name := range slices.Sorted(maps.Keys(c.Destinations)) {
		l.checkDestination(join("destinations", name), c.Destinations[name])
	}
	l.checkDestinations(c)
	l.checkNames(c)
	if r := c.Recovery; !l.bad["recovery.heartbeat"] && !l.bad["recovery.stale_after"] && r.Heartbeat > r.StaleAfter/beatsPerStale {
		l.fail("recovery.heartbeat", "is too long for a stale_after of "+FormatDuration(r.StaleAfter),
			"want at most a sixth of it, "+FormatDuration(r.StaleAfter/beatsPerStale))
	}
}

func (l *loader) checkListeners(c *Config) {
	listeners := []struct {
		key, endpoint string
		tls           ServerTLS
	}{
		{"receivers.grpc", c.Receivers.GRPC.Endpoint, c.Receivers.GRPC.TLS},
		{"receivers.http", c.Receivers.HTTP.Endpoint, c.Receivers.HTTP.TLS},
		{"admin", c.Admin.Endpoint, c.Admin.TLS},
	}
	used := make(map[string]string)
	for _, s := range listeners {
		key := s.key + ".endpoint"
		_, port, _ := net.SplitHostPort(s.endpoint)
		switch other, twice := used[s.endpoint]; {
		case s.endpoint == "":
			l.fail(key, "is empty", "want host:port")
		case twice:
			l.fail(key, "is also the one of "+other, "want a free one")
		case port != "0":
			used[s.endpoint] = s.key
		}
		l.checkPair(s.key+".tls", s.tls.CertFile, s.tls.KeyFile)
		if s.tls.ClientCAFile != "" && !s.tls.Enabled() {
			l.fail(s.key+".tls.client_ca_file", "is set without cert_file", "set cert_file and key_file too")
		}
	}
}

func (l *loader) checkWAL(c *Config) {
	if c.DataDir == "" {
		l.fail("data_dir", "is empty", "want a directory")
	}
	if !l.bad["wal.max_bytes"] && !l.bad["wal.segment_size"] && c.WAL.SegmentSizeBytes > c.WAL.MaxBytes {
		key := "wal.segment_size"
		if !l.written(key) {
			key = "wal.max_bytes"
		}
		l.fail(key, fmt.Sprintf("a segment of %s does not fit into max_bytes %s", c.WAL.SegmentSizeBytes, c.WAL.MaxBytes),
			"want segment_size up to max_bytes")
	}
	if l.bad["bucket.url"] || l.bad["data_dir"] {
		return
	}
	if dir, isFile := strings.CutPrefix(c.Bucket.URL, "file:"); isFile && resolve(dir) == resolve(c.DataDir) {
		l.fail("bucket.url", "is the data directory itself", "want another directory")
	}
	if c.WAL.Ack == AckBucket && c.BucketInsideDataDir() {
		l.fail("wal.ack", "bucket promises nothing while the bucket is inside data_dir", "set bucket.url to one outside of it, or ack: disk")
	}
}

func (l *loader) checkDestination(key string, d Destination) {
	endpoint := join(key, "endpoint")
	usesTLS := true
	switch d.Type {
	case OTLPHTTP:
		if what := checkURL(d.Endpoint); what != "" {
			l.fail(endpoint, what, "want a URL such as https://collector.example:4318, to which /v1/<signal> is appended")
		}
		usesTLS = !strings.HasPrefix(strings.ToLower(d.Endpoint), "http:")
	case OTLPGRPC:
		if !isHostPort(d.Endpoint, false) {
			l.fail(endpoint, "is no host:port", "want host:port such as collector.example:4317")
		}
		usesTLS = !d.TLS.Insecure
	case File:
		if what, allowed := checkDir(d.Endpoint); what != "" {
			l.fail(endpoint, what, allowed)
		}
	}
	l.checkPair(key+".tls", d.TLS.CertFile, d.TLS.KeyFile)
	if !usesTLS && (d.TLS.CertFile != "" || d.TLS.CAFile != "") {
		l.fail(key+".tls", "has certificates, but the connection is not encrypted", "want https:// (otlp_http) or insecure: false (otlp_grpc)")
	}
	initial, most := key+".retry.initial_interval", key+".retry.max_interval"
	if !l.bad[initial] && !l.bad[most] && d.Retry.InitialInterval > d.Retry.MaxInterval {
		l.fail(initial, "is longer than max_interval "+FormatDuration(d.Retry.MaxInterval), "want at most that")
	}
	l.checkRetryCodes(key+".retry.retry_codes", d)
	seen := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		lower := strings.ToLower(name)
		if seen[lower] {
			l.fail(key+".headers."+name, "is there twice: names of headers differ in more than case", "keep one")
		}
		seen[lower] = true
	}
}

// checkRetryCodes holds the codes against the protocol: HTTP status of a failure, or gRPC codes.
func (l *loader) checkRetryCodes(key string, d Destination) {
	low, high := 400, 599
	if d.Type == OTLPGRPC {
		low, high = 1, 16
	}
	for i, code := range d.Retry.RetryCodes {
		if d.Type != "" && (code < low || code > high) {
			l.fail(fmt.Sprintf("%s[%d]", key, i), fmt.Sprintf("%d is no code of a failure for %s", code, d.Type), fmt.Sprintf("want %d to %d", low, high))
		}
	}
}

// checkDestinations checks what holds for all of them together.
func (l *loader) checkDestinations(c *Config) {
	if len(c.Destinations) > maxDestinations {
		l.fail("destinations", strconv.Itoa(len(c.Destinations))+" destinations", fmt.Sprintf("want at most %d", maxDestinations))
	}
	defaultKey := join("destinations", DefaultDestination)
	if _, found := c.Destinations[DefaultDestination]; !found && !l.bad["destinations"] && !l.bad[defaultKey] {
		l.fail("destinations", "has no \"default\", where data goes that no route matches", "name one of them default")
	}
	used := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(c.Destinations)) {
		d := c.Destinations[name]
		if d.Type != File || d.Endpoint == "" {
			continue
		}
		dir := resolve(d.Endpoint)
		if other, twice := used[dir]; twice {
			l.fail("destinations."+name+".endpoint", "is also the directory of destination "+other, "want one directory for each")
		}
		used[dir] = name
	}
}

// checkNames checks that routes and tenants name destinations that exist.
func (l *loader) checkNames(c *Config) {
	names := slices.Sorted(maps.Keys(c.Destinations))
	known := func(key, name string) {
		if _, found := c.Destinations[name]; !found && name != "" {
			l.fail(key, l.show(key, name)+" is no destination", allowedNames(name, names))
		}
	}
	routed := make(map[string]int)
	for i, r := range c.Routes {
		key := fmt.Sprintf("routes[%d]", i)
		known(key+".destination", r.Destination)
		if first, twice := routed[r.Tenant]; twice && r.Tenant != "" {
			l.fail(key+".tenant", fmt.Sprintf("never matches: routes[%d] has the same tenant and comes first", first), "remove one")
			continue
		}
		routed[r.Tenant] = i
	}
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		known("tenants."+name+".destination", c.Tenants[name].Destination)
	}
}

// written reports whether key is in the file or overridden.
func (l *loader) written(key string) bool {
	_, found := l.places[key]
	return found
}

// BucketInsideDataDir reports whether the bucket is a directory in the data directory. Such a bucket serves jobs, archive
// and trials; it protects from nothing, so nothing is shipped to it.
func (c Config) BucketInsideDataDir() bool {
	dir, isFile := strings.CutPrefix(c.Bucket.URL, "file:")
	if !isFile {
		return false
	}
	relative, err := filepath.Rel(resolve(c.DataDir), resolve(dir))
	return err == nil && relative != ".." && !strings.HasPrefix(relative, "../")
}

// resolve makes a path absolute and follows the symbolic links of the part of it that exists.
func resolve(path string) string {
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	rest := ""
	for {
		if found, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Join(found, rest)
		}
		parent := filepath.Dir(path)
		if parent == path {
			return filepath.Join(path, rest)
		}
		path, rest = parent, filepath.Join(filepath.Base(path), rest)
	}
}
