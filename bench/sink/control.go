package sink

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Control is a handler by which another process commands the sink: GET /stats; POST /up; POST /down?cut=true;
// POST /behavior?status=503&retry_after=1s&delay=50ms&hang=true&lose_answer=true&requests=5 (each of them optional).
func (s *Sink) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Stats()) // an error is the client's, who is gone
	})
	mux.HandleFunc("POST /up", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.Up()) })
	mux.HandleFunc("POST /down", func(w http.ResponseWriter, r *http.Request) {
		reply(w, s.Down(r.URL.Query().Get("cut") == "true"))
	})
	mux.HandleFunc("POST /behavior", func(w http.ResponseWriter, r *http.Request) {
		b, err := parseBehavior(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.Behave(b)
		reply(w, nil)
	})
	return mux
}

func reply(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func parseBehavior(query url.Values) (b Behavior, err error) {
	for key, values := range query {
		value := values[len(values)-1]
		switch key {
		case "status":
			b.Status, err = strconv.Atoi(value)
			if err == nil && (b.Status < 200 || b.Status > 599) {
				err = fmt.Errorf("%d is not from 200 to 599", b.Status)
			}
		case "retry_after":
			b.RetryAfter, err = time.ParseDuration(value)
		case "delay":
			b.Delay, err = time.ParseDuration(value)
		case "hang":
			b.Hang, err = strconv.ParseBool(value)
		case "lose_answer":
			b.LoseAnswer, err = strconv.ParseBool(value)
		case "requests":
			b.Requests, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("not one of status, retry_after, delay, hang, lose_answer, requests")
		}
		if err != nil {
			return Behavior{}, fmt.Errorf("read behavior %s: %w", key, err)
		}
	}
	return b, nil
}
