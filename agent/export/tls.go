package export

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSOptions are the client side TLS settings of a destination, with the Collector's meanings.
type TLSOptions struct {
	Insecure           bool   // otlp_grpc: plain connection. otlp_http goes by the scheme of its URL
	InsecureSkipVerify bool   // do not verify the server's certificate
	CAFile             string // trust these authorities in place of the system's
	CertFile           string // client certificate; needs KeyFile
	KeyFile            string
	ServerNameOverride string // name to ask for and to verify, in place of the endpoint's host
}

// clientTLS reads the files and builds the configuration. It is called again to pick up changed files.
func clientTLS(o TLSOptions) (*tls.Config, error) {
	c := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: o.InsecureSkipVerify, //nolint:gosec // the operator's explicit choice
		ServerName:         o.ServerNameOverride,
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read tls.ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read tls.ca_file %s: no PEM certificate in it", o.CAFile)
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("tls.cert_file and tls.key_file: give both or none")
	}
	if o.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read tls.cert_file and tls.key_file: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}
