package agent

import (
	"crypto/tls"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"ingest-agent/agent/auth"
	"ingest-agent/agent/config"
	"ingest-agent/agent/receiver"
	"ingest-agent/agent/tlsfiles"
)

// access is who may connect and send: TLS of the listeners, tenants, and the token of the admin endpoint. Their files are
// read again while the agent runs.
type access struct {
	log     *zap.Logger
	reloads *prometheus.CounterVec
}

func newAccess(registry prometheus.Registerer, log *zap.Logger) *access {
	s := &access{log: log, reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "file_reloads_total",
		Help: "Files of certificates and tokens that were found changed, by the key of their section and outcome.",
	}, []string{"key", "outcome"})}
	registry.MustRegister(s.reloads)
	return s
}

// report logs and counts each change of the files of a section.
func (s *access) report(key string) func(error) {
	ok, failed := s.reloads.WithLabelValues(key, "ok"), s.reloads.WithLabelValues(key, "failed")
	return func(err error) {
		if err != nil {
			failed.Inc()
			s.log.Error("changed files cannot be used; the old ones stay in use", zap.String("key", key), zap.Error(err))
			return
		}
		ok.Inc()
		s.log.Info("changed files are in use", zap.String("key", key))
	}
}

// tls returns nil where the listener is plain.
func (s *access) tls(key string, c config.ServerTLS, protocols ...string) (*tls.Config, error) {
	if !c.Enabled() {
		return nil, nil
	}
	made, err := tlsfiles.ServerConfig(tlsfiles.Server{
		CertFile: c.CertFile, KeyFile: c.KeyFile, ClientCAFile: c.ClientCAFile,
		ReloadInterval: c.ReloadInterval, NextProtos: protocols, Report: s.report(key),
	})
	if err != nil {
		return nil, fmt.Errorf("start: %s: %w", key, err)
	}
	return made, nil
}

// guard is the admin endpoint behind its token, if there is one. Probes need none: what they are told is no secret, and
// they often cannot be given one.
func (s *access) guard(c config.Admin, next http.Handler) (http.Handler, error) {
	if c.AuthTokenFile == "" {
		return next, nil
	}
	guarded, err := auth.Guard(c.AuthTokenFile, s.report("admin.auth_token_file"), next, "/livez", "/readyz")
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	return guarded, nil
}

// receive adds to the receiver's options who may send, and as whom.
func (s *access) receive(c *config.Config, o *receiver.Options) (err error) {
	if o.GRPCTLS, err = s.tls("receivers.grpc.tls", c.Receivers.GRPC.TLS, "h2"); err != nil {
		return err
	}
	if o.HTTPTLS, err = s.tls("receivers.http.tls", c.Receivers.HTTP.TLS, "h2", "http/1.1"); err != nil {
		return err
	}
	who, err := auth.New(auth.Options{
		TokensFile: c.Auth.TokensFile, TenantHeader: c.Auth.TenantHeader, TrustedProxies: c.Auth.TrustedProxies,
		Report: s.report("auth.tokens_file"),
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	o.Settings.Tenant = who.Tenant
	o.Settings.TenantBytesPerSecond = make(map[string]int64, len(c.Tenants))
	for name, t := range c.Tenants {
		o.Settings.TenantBytesPerSecond[name] = int64(t.BytesPerSecond)
	}
	return nil
}
