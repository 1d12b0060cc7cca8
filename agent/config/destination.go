package config

import (
	"fmt"
	"strings"

	"ingest-agent/segment"
)

// DestinationForm says what ParseDestination reads.
const DestinationForm = "want [NAME=]file:DIR, [NAME=]otlp-http:URL or [NAME=]otlp-grpc:HOST:PORT"

// ParseDestination reads the short form of a destination: file:DIR, otlp-http:URL or otlp-grpc:HOST:PORT, with NAME= before
// it where it is not the default one. Only name, type and endpoint are set; the endpoint is not checked yet. The error does
// not repeat the text.
func ParseDestination(text string) (name string, d Destination, err error) {
	name = DefaultDestination
	before, after, found := strings.Cut(text, "=")
	if found && !strings.Contains(before, ":") { // a = behind the first colon belongs to the URL
		name, text = before, after
	}
	if !segment.ValidName(name) {
		return "", Destination{}, fmt.Errorf("%s is no name of a destination", show(name))
	}
	scheme, endpoint, _ := strings.Cut(text, ":")
	switch scheme {
	case "file":
		d.Type = File
	case "otlp-http":
		d.Type = OTLPHTTP
	case "otlp-grpc":
		d.Type = OTLPGRPC
	default:
		return "", Destination{}, fmt.Errorf("the type is not known")
	}
	if endpoint == "" {
		return "", Destination{}, fmt.Errorf("nothing follows %q", scheme+":")
	}
	d.Endpoint = endpoint
	return name, d, nil
}
