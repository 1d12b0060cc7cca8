package receiver

import (
	"net"
	"sync"
	"sync/atomic"
)

// conns is a listener that knows and bounds its open connections. Both servers wait at a stop, for seconds, for connections on which
// a client has not sent anything yet (a port probe, a connection opened ahead of need); such are closed here instead.
type conns struct {
	net.Listener
	mu      sync.Mutex
	open    map[*conn]bool
	stopped bool
	most    int    // connections open at once
	onMost  func() // called for each connection beyond it
}

func newConns(l net.Listener, onMost func()) *conns {
	return &conns{Listener: l, open: make(map[*conn]bool), most: maxConnections, onMost: onMost}
}

// Accept waits for the next connection that there is room for. Others are closed: left to wait, they could not tell a full
// listener from a slow one, and whoever fills it with silence would lock all others out unseen.
func (s *conns) Accept() (net.Conn, error) {
	for {
		raw, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, conns: s}
		s.mu.Lock()
		full, stopped := len(s.open) >= s.most, s.stopped
		if !full {
			s.open[c] = true
		}
		s.mu.Unlock()
		if full {
			_ = raw.Close() // nothing was said on it
			s.onMost()
			continue
		}
		if stopped {
			_ = c.Close() // accepted in the moment of the stop; the server finds it closed
		}
		return c, nil
	}
}

// closeUnused closes the connections that never sent anything, now and from now on.
func (s *conns) closeUnused() { s.close(func(c *conn) bool { return !c.used.Load() }) }

// closeAll closes all connections.
func (s *conns) closeAll() { s.close(func(*conn) bool { return true }) }

func (s *conns) close(which func(*conn) bool) {
	var chosen []*conn
	s.mu.Lock()
	s.stopped = true
	for c := range s.open {
		if which(c) {
			chosen = append(chosen, c)
		}
	}
	s.mu.Unlock()
	for _, c := range chosen {
		_ = c.Close() // given up
	}
}

type conn struct {
	net.Conn
	conns *conns
	used  atomic.Bool
}

// Read reads, and marks the connection as one that is used.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.used.Load() {
		c.used.Store(true)
	}
	return n, err
}

// Close closes the connection.
func (c *conn) Close() error {
	c.conns.mu.Lock()
	delete(c.conns.open, c)
	c.conns.mu.Unlock()
	return c.Conn.Close()
}
