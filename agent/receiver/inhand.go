package receiver

import "sync"

// inHand counts the requests that are being worked on, and turns new ones away once the receiver stops.
type inHand struct {
	mu       sync.Mutex
	n        int
	stopped  bool
	stopping chan struct{} // closed by stop
	idle     chan struct{} // closed when stopped and none is left
}

func newInHand() *inHand {
	return &inHand{stopping: make(chan struct{}), idle: make(chan struct{})}
}

// enter reports whether a request may begin; it must then leave.
func (h *inHand) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return false
	}
	h.n++
	return true
}

func (h *inHand) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n--
	if h.n == 0 && h.stopped {
		close(h.idle)
	}
}

func (h *inHand) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return
	}
	h.stopped = true
	close(h.stopping)
	if h.n == 0 {
		close(h.idle)
	}
}

func (h *inHand) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}
