//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// link stands between the agent and the bucket: it carries so many bytes a second in each direction, whatever the number of
// connections, and each request takes so much longer.
type link struct {
	server   http.Server
	up, down pace
	latency  time.Duration
	serving  sync.WaitGroup
}

// startLink starts a link to the server of a bucket's URL, and returns the URL by way of it.
func startLink(bucket string, rate float64, latency time.Duration) (*link, string, error) {
	u, err := url.Parse(bucket)
	if err != nil {
		return nil, "", fmt.Errorf("parse bucket's URL: %w", err)
	}
	query := u.Query()
	target, err := url.Parse(query.Get("endpoint"))
	if err != nil {
		return nil, "", fmt.Errorf("parse bucket's endpoint: %w", err)
	}
	l := &link{up: pace{rate: rate}, down: pace{rate: rate}, latency: latency}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("listen: %w", err)
	}
	l.server.Handler = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.Scheme, target.Host, r.In.Host // the signature is over it
			if r.Out.Body != nil {
				r.Out.Body = &paced{r.Out.Body, &l.up}
			}
			time.Sleep(l.latency)
		},
		ModifyResponse: func(r *http.Response) error {
			r.Body = &paced{r.Body, &l.down}
			return nil
		},
	}
	l.serving.Go(func() { _ = l.server.Serve(listener) }) // until it is closed
	query.Set("endpoint", "http://"+listener.Addr().String())
	u.RawQuery = query.Encode()
	return l, u.String(), nil
}

func (l *link) close() error {
	defer l.serving.Wait()
	if err := l.server.Close(); err != nil {
		return fmt.Errorf("close link: %w", err)
	}
	return nil
}

// pace lets bytes pass at a rate.
type pace struct {
	mu   sync.Mutex
	rate float64 // bytes a second
	next time.Time
}

func (p *pace) pass(n int) {
	p.mu.Lock()
	now := time.Now()
	if credit := now.Add(-burst); p.next.Before(credit) {
		p.next = credit
	}
	p.next = p.next.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	wait := p.next.Sub(now)
	p.mu.Unlock()
	time.Sleep(wait)
}

const (
	piece = 32 << 10 // passes at once
	// burst is how much of the rate may be made up for: a sleep is longer than it is asked to be, which must not slow down the one
	// connection that is alone.
	burst = 10 * time.Millisecond
)

type paced struct {
	io.ReadCloser

	pace *pace
}

func (p *paced) Read(to []byte) (int, error) {
	n, err := p.ReadCloser.Read(to[:min(len(to), piece)])
	p.pace.pass(n)
	return n, err //nolint:wrapcheck // it is the reader's
}
