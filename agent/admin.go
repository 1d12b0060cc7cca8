package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"ingest-agent/recovery"
	"ingest-agent/segment"
	"ingest-agent/shipper"
)

const (
	adminHeaderTimeout  = 5 * time.Second
	adminTimeout        = 30 * time.Second
	maxAdminHeaderBytes = 16 << 10
)

// admin serves /livez, /readyz, /metrics and /api/v1/state.
type admin struct {
	a       *Agent
	addr    string
	server  *http.Server
	serving atomic.Bool   // receivers are open
	done    chan struct{} // the server has ended
}

func startAdmin(a *Agent, access *access) (*admin, error) {
	tlsConfig, err := access.tls("admin.tls", a.cfg.Admin.TLS, "h2", "http/1.1")
	if err != nil {
		return nil, err
	}
	s := &admin{a: a, done: make(chan struct{})}
	handler, err := access.guard(a.cfg.Admin, s.routes())
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", a.cfg.Admin.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("listen for admin: %w", err)
	}
	s.addr = l.Addr().String()
	serve := func() error { return s.server.Serve(l) }
	if tlsConfig != nil {
		serve = func() error { return s.server.ServeTLS(l, "", "") }
	}
	s.server = &http.Server{
		Handler: handler, TLSConfig: tlsConfig, ReadHeaderTimeout: adminHeaderTimeout, ReadTimeout: adminTimeout, WriteTimeout: adminTimeout,
		MaxHeaderBytes: maxAdminHeaderBytes, ErrorLog: zap.NewStdLog(a.log),
	}
	go func() {
		defer close(s.done)
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("admin endpoint ended", zap.Error(err))
		}
	}()
	return s, nil
}

func (s *admin) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /api/v1/state", s.state)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.a.metrics.registry, promhttp.HandlerOpts{ErrorLog: zap.NewStdLog(s.a.log)}))
	return mux
}

func (s *admin) stop(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if err != nil {
		_ = s.server.Close() // cuts what is left; the error is that of ctx
		err = fmt.Errorf("stop admin endpoint: %w", err)
	}
	<-s.done
	return err
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // the client went away
}

// readyz answers 200 only if a request would now be made durable.
func (s *admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if !s.serving.Load() {
		writeText(w, http.StatusServiceUnavailable, "starting")
		return
	}
	err := s.a.ready()
	if err == nil {
		writeText(w, http.StatusOK, "ok")
		return
	}
	if r, ok := errors.AsType[*segment.RefusedError](err); ok {
		writeText(w, http.StatusServiceUnavailable, string(r.Reason))
		return
	}
	writeText(w, http.StatusServiceUnavailable, "not ready")
}

// State is the answer of /api/v1/state.
type State struct {
	Version string               `json:"version"`
	Node    string               `json:"node"`
	Owner   segment.OwnerID      `json:"owner"`
	Started time.Time            `json:"started"`
	Ready   bool                 `json:"ready"`
	Cause   string               `json:"cause,omitempty"` // why it is not ready
	Space   SpaceState           `json:"space"`
	Lanes   map[string]LaneState `json:"lanes"`
	// Orphans are lanes whose destination is not configured: their backlog stays.
	Orphans []segment.LaneID `json:"orphans,omitempty"`
	Bucket  *BucketState     `json:"bucket,omitempty"` // unset: it is inside the data directory
}

// BucketState says what is shipped and taken over.
type BucketState struct {
	Shipper  shipper.Stats   `json:"shipper"`
	Recovery *recovery.Stats `json:"recovery,omitempty"` // unset: recovery.enabled is false
}

// SpaceState says how much of wal.max_bytes is in use.
type SpaceState struct {
	UsedBytes int64 `json:"used_bytes"`
	MaxBytes  int64 `json:"max_bytes"`
}

// LaneState is a lane with what is pending in it.
type LaneState struct {
	segment.Stats
	Pending segment.Totals `json:"pending"`
}

// State returns the agent's state at this moment.
func (a *Agent) State() State {
	st := State{
		Version: a.o.Version, Node: a.cfg.Node, Owner: a.owner, Started: a.start, Ready: true,
		Space: SpaceState{a.space.Used(), int64(a.cfg.WAL.MaxBytes)},
		Lanes: map[string]LaneState{}, Orphans: a.lanes.orphan,
	}
	if s := a.shared; s != nil {
		st.Bucket = &BucketState{Shipper: s.shipper.Stats()}
		if s.recovery != nil {
			rs := s.recovery.Stats()
			st.Bucket.Recovery = &rs
		}
	}
	if err := a.ready(); err != nil {
		st.Ready, st.Cause = false, err.Error()
	}
	for _, l := range a.lanes.stats() {
		st.Lanes[l.id.String()] = LaneState{l.Stats, l.pending}
	}
	return st
}

func (s *admin) state(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s.a.State()); err != nil {
		s.a.log.Debug("state not written", zap.Error(err))
	}
}
