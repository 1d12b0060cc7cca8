package agent

import (
	"errors"
	"fmt"

	"ingest-agent/agent/config"
	"ingest-agent/agent/export"
	"ingest-agent/segment"
)

// destination is one entry of destinations: its sink and how it is drained, each of which can be swapped.
type destination struct {
	name   string
	cfg    *config.Live[config.Destination]
	sink   *config.Live[export.Sink]
	health health
}

func openDestinations(c *config.Config, version string, access *access) (map[string]*destination, error) {
	dests := map[string]*destination{}
	for name, d := range c.Destinations {
		o := exportOptions(c, d, version)
		if o.TLS.ReloadInterval > 0 {
			o.TLS.Report = access.report("destinations." + name + ".tls")
		}
		sink, err := export.New(name, o)
		if err != nil {
			for _, open := range dests {
				err = errors.Join(err, open.close())
			}
			return nil, err
		}
		dests[name] = &destination{name: name, cfg: config.NewLive(d), sink: config.NewLive(sink)}
	}
	return dests, nil
}

func exportOptions(c *config.Config, d config.Destination, version string) export.Options {
	o := export.Options{
		Type:        export.Type(d.Type),
		Compression: export.Compression(d.Compression),
		Headers:     map[string]string{},
		Timeout:     d.Timeout,
		InFlight:    d.InFlight * c.WAL.Shards,
		RetryCodes:  d.Retry.RetryCodes,
		FrameIDs:    d.FrameIDs,
		UserAgent:   "ingest-agent/" + version,
		TLS: export.TLSOptions{
			Insecure: d.TLS.Insecure, InsecureSkipVerify: d.TLS.InsecureSkipVerify, CAFile: d.TLS.CAFile,
			CertFile: d.TLS.CertFile, KeyFile: d.TLS.KeyFile, ServerNameOverride: d.TLS.ServerNameOverride,
			ReloadInterval: d.TLS.ReloadInterval,
		},
	}
	for k, v := range d.Headers {
		o.Headers[k] = string(v)
	}
	if d.Type == config.File {
		o.Directory = d.Endpoint
	} else {
		o.Endpoint = d.Endpoint
	}
	return o
}

func (d *destination) current() segment.Sink { return d.sink.Load() }

// maxWindowBytes bounds what a lane reads ahead. Within it there is a full request for each that may be in flight.
const maxWindowBytes = 32 << 20

func (d *destination) limits() segment.Limits {
	c := d.cfg.Load()
	return segment.Limits{
		InFlight:        c.InFlight,
		MaxRequestBytes: int(c.MaxRequestSizeBytes),
		WindowBytes:     min(max(c.InFlight, 2)*int(c.MaxRequestSizeBytes), maxWindowBytes),
		Ordered:         c.Ordered,
		RetryInitial:    c.Retry.InitialInterval,
		RetryMax:        c.Retry.MaxInterval,
		ParkAfter:       c.ParkAfter,
		MaxAge:          c.MaxAge,
	}
}

// maxParkedWindowBytes bounds what a parked lane reads ahead: there may be many of them.
const maxParkedWindowBytes = 4 << 20

// parkedLimits leave the larger share of the destination to what is not refused.
func (d *destination) parkedLimits() segment.Limits {
	l := d.limits()
	l.InFlight = max(1, l.InFlight/2)
	l.WindowBytes = min(l.WindowBytes, maxParkedWindowBytes)
	return l
}

func (d *destination) close() error {
	if err := d.sink.Load().Close(); err != nil {
		return fmt.Errorf("close destination %s: %w", d.name, err)
	}
	return nil
}
