package config

import (
	"testing"
	"time"
)

func TestSize(t *testing.T) {
	for _, test := range []struct {
		text  string
		bytes int64
		form  string
	}{
		{"0", 0, "0"}, {"0KiB", 0, "0"}, {"1", 1, "1"}, {"5B", 5, "5"}, {"8MiB", 8 << 20, "8MiB"}, {"512KiB", 512 << 10, "512KiB"},
		{"1024KiB", 1 << 20, "1MiB"}, {"1GiB", 1 << 30, "1GiB"}, {"1GB", 1e9, "1GB"}, {"1000MB", 1e9, "1GB"}, {"1kB", 1000, "1KB"},
		{"1536MiB", 1536 << 20, "1536MiB"}, {"1048577", 1<<20 + 1, "1048577"}, {"8191PiB", 8191 << 50, "8191PiB"},
		{"1TiB", 1 << 40, "1TiB"}, {"1TB", 1e12, "1TB"}, {"16KB", 16000, "16KB"}, {"9223372036854775807", 1<<63 - 1, "9223372036854775807"},
	} {
		got, err := ParseSize(test.text)
		if err != nil || int64(got) != test.bytes || got.String() != test.form {
			t.Errorf("%s: got %d %s %v, want %d %s", test.text, int64(got), got, err, test.bytes, test.form)
		}
		if again, err := ParseSize(got.String()); err != nil || again != got {
			t.Errorf("%s: read again it is %d, %v", got, int64(again), err)
		}
	}
	for _, text := range []string{
		"", "B", "MiB", "-1", "+1", "1.5GiB", "1 MiB", "8M", "8mib", "8MIB", "1_000", "0x10", "8192PiB", "9223372036854775808", "1e3", "MiB8", "1KiBKiB", "１",
	} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, int64(got))
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "0s": "0", "200ms": "200ms", "30s": "30s", "60s": "1m", "90s": "1m30s", "1h": "1h", "168h": "168h", "1h0m5s": "1h0m5s",
		"10m": "10m", "100m": "1h40m", "1h30m": "1h30m", "10s": "10s", "1.5s": "1.5s",
	} {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := FormatDuration(d); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
		if again, err := time.ParseDuration(want); err != nil || again != d {
			t.Errorf("%s does not mean %s", want, text)
		}
	}
}

func TestExpand(t *testing.T) {
	variables := env(map[string]string{"A": "a", "EMPTY": "", "REF": "${env:A}$$", "YAML": "x: [1]\n- y"})
	for _, test := range []struct {
		text, want string
		expanded   bool
	}{
		{"plain", "plain", false}, {"$", "$", false}, {"a$b$", "a$b$", false}, {"$$", "$", false}, {"$${env:A}", "${env:A}", false},
		{"$$$${x}", "$${x}", false}, {"${env:A}", "a", true}, {"x${env:A}y${env:A}z", "xayaz", true}, {"$$${env:A}", "$a", true},
		{"${env:NO:-}", "", true}, {"${env:NO:-b c}", "b c", true}, {"${env:NO:-$$5}", "$5", true}, {"${env:A:-b}", "a", true},
		{"${env:EMPTY:-b}", "", true}, {"${env:NO:-a:-b}", "a:-b", true},
		{"${env:REF}", "${env:A}$$", true}, {"${env:YAML}", "x: [1]\n- y", true},
	} {
		got, expanded, err := expand(test.text, variables)
		if err != nil || got != test.want || expanded != test.expanded {
			t.Errorf("%q: got %q %t %v", test.text, got, expanded, err)
		}
	}
	for text, want := range map[string]string{
		"${env:NO}":             "environment variable NO is not set",
		"${env:EMPTY}":          "environment variable EMPTY is empty",
		"${A}":                  "has a reference that is not understood",
		"${env:}":               "has a reference that is not understood",
		"${env:1A}":             "has a reference that is not understood",
		"${env:A B}":            "has a reference that is not understood",
		"${file:/etc/passwd}":   "has a reference that is not understood",
		"${env:A":               "has a reference that is not understood",
		"${env:NO:-${env:A}}":   "has a reference that is not understood",
		"${env:A}${env:NO:--}$": "",
	} {
		_, _, err := expand(text, variables)
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// TestExpandedValueIsAPlainScalar: what comes from the environment is never read as YAML.
func TestExpandedValueIsAPlainScalar(t *testing.T) {
	text := "destinations: {default: {type: otlp_http, endpoint: 'http://h', headers: {a: \"${env:V}\"}}}\nwal: {shards: \"${env:N}\"}\n"
	c, err := Parse("f", []byte(text), nil, env(map[string]string{"V": "x, b: y}, z: {", "N": "3"}))
	if err != nil {
		t.Fatal(err)
	}
	if headers := c.Destinations["default"].Headers; len(headers) != 1 || string(headers["a"]) != "x, b: y}, z: {" || c.WAL.Shards != 3 {
		t.Errorf("got %q and %d shards", string(headers["a"]), c.WAL.Shards)
	}
	if _, err := Parse("f", []byte("node: ${env:V}\n"), nil, env(map[string]string{"V": "~"})); err != nil {
		t.Errorf("a null from the environment is text: %v", err)
	}
}
