package sink

import (
	"context"
	"net/http"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Behavior says how requests are answered. The zero value takes them all.
type Behavior struct {
	Status     int           // an HTTP status to refuse with; 0 or 200: take the request. gRPC answers the code that means the same
	RetryAfter time.Duration // with Status: the delay to ask for; 0: none
	Delay      time.Duration // before the answer, and before a request that is taken is counted
	Hang       bool          // read the request, then never answer
	LoseAnswer bool          // count the request as taken, then cut the connection without an answer
	Requests   int           // after so many requests, take all again; 0: stay
}

// script is the behavior of the moment.
type script struct {
	mu   sync.Mutex
	now  Behavior
	left int // requests until all are taken again, if now.Requests is set
	all  int // requests so far
}

func (s *script) set(b Behavior) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.left = b, b.Requests
}

// next is the behavior for one request.
func (s *script) next() Behavior {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all++
	if s.now.Requests == 0 {
		return s.now
	}
	if s.left == 0 {
		return Behavior{}
	}
	s.left--
	return s.now
}

// seen is the number of requests that came so far.
func (s *script) seen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

// refuses reports whether requests are not to be taken.
func (b Behavior) refuses() bool { return b.Status != 0 && b.Status != http.StatusOK }

// wait returns when it is time to answer. It is false if it never will be: the client went away or the sink goes down.
func (b Behavior) wait(client, sinkUp context.Context) bool {
	if b.Delay == 0 && !b.Hang {
		return true
	}
	var due <-chan time.Time // nil, and so for ever, to hang
	if !b.Hang {
		timer := time.NewTimer(b.Delay)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-due:
		return true
	case <-client.Done():
	case <-sinkUp.Done():
	}
	return false
}

// err is the refusal in terms of gRPC.
func (b Behavior) err() error {
	code := codes.Unknown
	switch b.Status {
	case http.StatusBadRequest:
		code = codes.InvalidArgument
	case http.StatusUnauthorized:
		code = codes.Unauthenticated
	case http.StatusForbidden:
		code = codes.PermissionDenied
	case http.StatusNotFound, http.StatusNotImplemented:
		code = codes.Unimplemented
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
		code = codes.ResourceExhausted
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		code = codes.Unavailable
	case http.StatusGatewayTimeout:
		code = codes.DeadlineExceeded
	}
	s := status.New(code, "the sink was told to refuse")
	if b.RetryAfter > 0 {
		// It only fails for the code OK.
		if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(b.RetryAfter)}); err == nil {
			s = detailed
		}
	}
	return s.Err()
}
