package versus

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Ports are the host:port that a subject is given.
type Ports struct {
	GRPC, HTTP, Admin string
	Sink              string // host:port for GRPC, the base URL for HTTP
	Bucket            string // a directory for what another subject finishes
}

// Subject is a program that takes OTLP and delivers it.
type Subject struct {
	Name      string
	Binary    string
	configure func(cfg Config, data string, p Ports) any // its configuration: YAML takes JSON
	arguments func(file string) []string
}

// keys are a section of a configuration.
type keys = map[string]any

// Agent is the agent with its defaults: two lanes, an answer when the disk is synced.
func Agent(binary string) Subject {
	return Subject{
		Name: "agent", Binary: binary,
		arguments: func(file string) []string { return []string{"run", "--config", file} },
		configure: func(cfg Config, data string, p Ports) any {
			destination := keys{"type": "otlp_grpc", "endpoint": p.Sink, "tls": keys{"insecure": true}}
			if cfg.Transport == HTTP {
				destination = keys{"type": "otlp_http", "endpoint": p.Sink}
			}
			destination["compression"] = cfg.Compression
			destination["retry"] = keys{"max_interval": "1s"} // for a sink that was down
			all := keys{
				"data_dir":     data,
				"wal":          keys{"max_bytes": "64GiB"}, // no backlog is refused
				"receivers":    keys{"grpc": keys{"endpoint": p.GRPC}, "http": keys{"endpoint": p.HTTP}},
				"admin":        keys{"endpoint": p.Admin},
				"destinations": keys{"default": destination},
			}
			if cfg.Again == Adopt {
				all["bucket"] = keys{"url": "file:" + p.Bucket}
				all["shipper"] = keys{"after": "1h"}    // by the stop alone
				all["shutdown"] = keys{"timeout": "1m"} // half of it waits for the sink
				all["recovery"] = keys{"scan_interval": "200ms"}
			}
			return all
		},
	}
}

// Collector is the OpenTelemetry Collector with a queue on disk that is synced before the answer, of any size.
func Collector(binary string) Subject {
	return Subject{
		Name: "collector", Binary: binary,
		arguments: func(file string) []string { return []string{"--config", file} },
		configure: func(cfg Config, data string, p Ports) any {
			kind, exporter := "otlp_grpc", keys{"endpoint": p.Sink, "tls": keys{"insecure": true}}
			if cfg.Transport == HTTP {
				kind, exporter = "otlp_http", keys{"endpoint": p.Sink}
			}
			exporter["compression"] = cfg.Compression
			exporter["sending_queue"] = keys{"storage": "file_storage", "queue_size": 10_000_000}
			exporter["retry_on_failure"] = keys{"max_elapsed_time": "0s", "max_interval": "1s"}
			exporters := []string{kind}
			pipeline := keys{"receivers": []string{"otlp"}, "exporters": exporters}
			return keys{
				"extensions": keys{"file_storage": keys{
					"directory": data, "create_directory": true, "fsync": true, "timeout": (10 * time.Second).String(),
				}},
				"receivers": keys{"otlp": keys{"protocols": keys{"grpc": keys{"endpoint": p.GRPC}, "http": keys{"endpoint": p.HTTP}}}},
				"exporters": keys{kind: exporter},
				"service": keys{
					"extensions": []string{"file_storage"},
					"pipelines":  keys{"logs": pipeline, "traces": pipeline, "metrics": pipeline},
				},
			}
		},
	}
}

// command is what runs the subject with its data in a directory; its configuration is put into dir.
func (s Subject) command(cfg Config, dir, data string, p Ports) (*exec.Cmd, error) {
	text, err := json.MarshalIndent(s.configure(cfg, data, p), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, text, 0o640); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return exec.Command(s.Binary, s.arguments(file)...), nil
}

func listens(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	_ = c.Close() // it was only asked whether somebody is there
	return true
}
