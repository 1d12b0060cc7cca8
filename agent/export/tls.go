package export

import (
	"crypto/tls"
	"time"

	"google.golang.org/grpc/credentials"

	"ingest-agent/agent/tlsfiles"
)

// TLSOptions are the client side TLS settings of a destination, with the Collector's meanings.
type TLSOptions struct {
	Insecure           bool   // otlp_grpc: plain connection. otlp_http goes by the scheme of its URL
	InsecureSkipVerify bool   // do not verify the server's certificate
	CAFile             string // trust these authorities in place of the system's
	CertFile           string // client certificate; needs KeyFile
	KeyFile            string
	ServerNameOverride string        // name to ask for and to verify, in place of the endpoint's host
	ReloadInterval     time.Duration // how often the files are read again for new connections; 0: never
	// Report hears of each change of the files: nil, or why the old ones stay in use. It is called within Deliver or while
	// a connection is made, must not block, and may be nil.
	Report func(error)
}

// clientTLS reads the files. host is the endpoint's.
func clientTLS(o *TLSOptions, host string) (*tls.Config, error) {
	name := o.ServerNameOverride
	if name == "" && o.ReloadInterval > 0 { // else it is taken from the address of each connection
		name = host
	}
	return tlsfiles.ClientConfig(tlsfiles.Client{
		CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile, ServerName: name, InsecureSkipVerify: o.InsecureSkipVerify,
		ReloadInterval: o.ReloadInterval, Report: o.Report,
	})
}

// endpointCredentials are TLS credentials that leave the name in the requests to the endpoint. Those of grpc put the name
// that is verified there, without a port.
type endpointCredentials struct {
	credentials.TransportCredentials
}

// Info implements credentials.TransportCredentials.
func (c endpointCredentials) Info() credentials.ProtocolInfo {
	info := c.TransportCredentials.Info()
	info.ServerName = "" //nolint:staticcheck // grpc reads it, and refuses a WithAuthority that differs from it
	return info
}

// Clone implements credentials.TransportCredentials.
func (c endpointCredentials) Clone() credentials.TransportCredentials {
	return endpointCredentials{c.TransportCredentials.Clone()}
}
