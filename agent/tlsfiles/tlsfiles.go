// Package tlsfiles makes TLS configurations from PEM files that may be replaced while the process runs.
//
// What it guarantees: new connections get the new files at the latest one interval after these were replaced, whole: a
// certificate with its own key. Files that cannot be used leave those in use that worked last, and are reported once.
// Connections that are open go on as they are. TLS is 1.2 at least. With client authorities, each connection needs a
// certificate that one of them signed, as the file is now: an authority that was taken out is trusted by no new connection,
// nor by one that resumes a session, which the library checks.
//
// What it assumes: what package reload assumes. The settings are named as in the OpenTelemetry Collector's configtls; why it
// is not used is in docs/decisions/0006-own-tls-reload.md.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"ingest-agent/agent/reload"
)

const minVersion = tls.VersionTLS12

// Server is what a listener's TLS is made from.
type Server struct {
	CertFile, KeyFile string        // certificate chain and key, PEM
	ClientCAFile      string        // authorities of clients, PEM; empty: clients show no certificate
	ReloadInterval    time.Duration // how often the files are read again; 0: never
	NextProtos        []string      // ALPN, the best first
	Report            func(error)   // hears of each change of the files: nil, or why the old ones stay; may be nil
}

// ServerConfig reads the files and returns a configuration for a listener. It must not be changed, but may be cloned.
func ServerConfig(s Server) (*tls.Config, error) {
	paths := []string{s.CertFile, s.KeyFile}
	if s.ClientCAFile != "" {
		paths = append(paths, s.ClientCAFile)
	}
	current, err := reload.New(reload.Options[*tls.Config]{
		Paths: paths, Interval: s.ReloadInterval, Report: s.Report,
		Make: func(contents [][]byte) (*tls.Config, error) { return makeServer(s, contents) },
	})
	if err != nil {
		return nil, fmt.Errorf("make TLS for a listener: %w", err)
	}
	return &tls.Config{
		MinVersion:         minVersion,
		NextProtos:         s.NextProtos,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return current.Get(), nil },
	}, nil
}

func makeServer(s Server, contents [][]byte) (*tls.Config, error) {
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("use cert_file %s with key_file %s: %w", s.CertFile, s.KeyFile, err)
	}
	c := &tls.Config{MinVersion: minVersion, NextProtos: s.NextProtos, Certificates: []tls.Certificate{cert}}
	if s.ClientCAFile != "" {
		if c.ClientCAs, err = makePool(contents[2]); err != nil {
			return nil, fmt.Errorf("use client_ca_file %s: %w", s.ClientCAFile, err)
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

func makePool(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("no PEM certificate in it")
	}
	return pool, nil
}

// Client is what TLS towards a server is made from.
type Client struct {
	CAFile             string        // who may sign the server's certificate, PEM; empty: the system's list
	CertFile, KeyFile  string        // own certificate chain and key, PEM; both or none
	ServerName         string        // the host that is connected to, or another name to ask for and to verify
	InsecureSkipVerify bool          // do not verify the server's certificate
	ReloadInterval     time.Duration // how often the files are read again; 0: never
	Report             func(error)   // as for Server
}

// ClientConfig reads the files and returns a configuration for connections to one server. It must not be changed, but may
// be cloned.
func ClientConfig(c Client) (*tls.Config, error) {
	config := &tls.Config{
		MinVersion:         minVersion,
		ServerName:         c.ServerName,
		InsecureSkipVerify: c.InsecureSkipVerify, //nolint:gosec // the operator's explicit choice
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("make TLS for a client: cert_file and key_file: give both or none")
	}
	if err := useClientCert(config, c); err != nil {
		return nil, fmt.Errorf("make TLS for a client: %w", err)
	}
	if err := useRoots(config, c); err != nil {
		return nil, fmt.Errorf("make TLS for a client: %w", err)
	}
	return config, nil
}

func useClientCert(config *tls.Config, c Client) error {
	if c.CertFile == "" {
		return nil
	}
	current, err := reload.New(reload.Options[*tls.Certificate]{
		Paths: []string{c.CertFile, c.KeyFile}, Interval: c.ReloadInterval, Report: c.Report,
		Make: func(contents [][]byte) (*tls.Certificate, error) {
			cert, err := tls.X509KeyPair(contents[0], contents[1])
			if err != nil {
				return nil, fmt.Errorf("use cert_file %s with key_file %s: %w", c.CertFile, c.KeyFile, err)
			}
			return &cert, nil
		},
	})
	if err != nil {
		return err
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return current.Get(), nil }
	return nil
}

// useRoots makes the configuration trust the authorities of the file only. The library takes them as a constant; where they
// may change, its verification is replaced by the same one with the current ones.
func useRoots(config *tls.Config, c Client) error {
	if c.CAFile == "" || c.InsecureSkipVerify {
		return nil
	}
	current, err := reload.New(reload.Options[*x509.CertPool]{
		Paths: []string{c.CAFile}, Interval: c.ReloadInterval, Report: c.Report,
		Make: func(contents [][]byte) (*x509.CertPool, error) {
			pool, err := makePool(contents[0])
			if err != nil {
				return nil, fmt.Errorf("use ca_file %s: %w", c.CAFile, err)
			}
			return pool, nil
		},
	})
	if err != nil {
		return err
	}
	if c.ReloadInterval <= 0 {
		config.RootCAs = current.Get()
		return nil
	}
	if c.ServerName == "" { // the name in the connection's state is empty for addresses: nothing would be verified
		return errors.New("a ca_file that is reloaded needs the name of the server")
	}
	config.InsecureSkipVerify = true // VerifyConnection does it
	config.VerifyConnection = func(state tls.ConnectionState) error {
		options := x509.VerifyOptions{Roots: current.Get(), DNSName: c.ServerName, Intermediates: x509.NewCertPool()}
		for _, cert := range state.PeerCertificates[1:] { // a server shows one at least
			options.Intermediates.AddCert(cert)
		}
		if _, err := state.PeerCertificates[0].Verify(options); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
		}
		return nil
	}
	return nil
}
