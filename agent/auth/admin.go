package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"slices"

	"ingest-agent/agent/config"
	"ingest-agent/agent/reload"
)

// Guard lets those pass to next who show the token in tokenFile, and everybody to the open paths. The file is read again
// when it changes; report hears of that and may be nil.
func Guard(tokenFile string, report func(error), next http.Handler, open ...string) (http.Handler, error) {
	want, err := reload.New(reload.Options[digest]{
		Paths: []string{tokenFile}, Interval: checkInterval, Report: report,
		Make: func(contents [][]byte) (digest, error) {
			token, err := config.ParseToken(contents[0])
			return sha256.Sum256([]byte(token)), err
		},
	})
	if err != nil {
		return nil, fmt.Errorf("use admin.auth_token_file: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(open, r.URL.Path) {
			token, found := bearer(r.Header.Values("Authorization"))
			got, right := sha256.Sum256([]byte(token)), want.Get()
			if !found || subtle.ConstantTimeCompare(got[:], right[:]) != 1 {
				w.Header().Set("WWW-Authenticate", "Bearer")
				http.Error(w, "no valid token", http.StatusUnauthorized)
				return
			}
		}
		next.ServeHTTP(w, r)
	}), nil
}
