// Package auth says who sends a request: bearer tokens and a header of trusted proxies to tenants, and the token of the
// admin endpoint.
//
// What it guarantees: without a valid token or the word of a trusted proxy nobody is let in, once either is configured. A
// token is compared by its SHA-256, and is never part of an error or of a report. A tenant's name has the bounds of
// config.ValidTenant. A tokens file that changed is in use within checkInterval of the next request; a bad one leaves the
// old set in use.
//
// What it assumes: the peer's address is that of the connection; whoever trusts a proxy knows that it sets the header on
// each request, in place of what its own client sent.
package auth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"ingest-agent/agent/config"
	"ingest-agent/agent/receiver"
	"ingest-agent/agent/reload"
)

// checkInterval is how often a file of tokens is looked at, at most.
const checkInterval = time.Second

// Options are the section auth of the configuration.
type Options struct {
	TokensFile     string         // YAML map of bearer token to tenant; empty: no tokens
	TenantHeader   string         // header or metadata key that names the tenant
	TrustedProxies []netip.Prefix // peers whose TenantHeader is believed
	Report         func(error)    // hears of each change of TokensFile: nil, or why the old set stays; may be nil
}

// digest is what is kept of a token.
type digest [sha256.Size]byte

// Authenticator resolves tenants. Its methods may be called from any goroutine.
type Authenticator struct {
	header  string
	proxies []netip.Prefix
	tokens  *reload.Value[map[digest]string] // nil: no tokens
}

// New reads the tokens.
func New(o Options) (*Authenticator, error) {
	a := &Authenticator{header: o.TenantHeader, proxies: o.TrustedProxies}
	if o.TokensFile == "" {
		return a, nil
	}
	var err error
	a.tokens, err = reload.New(reload.Options[map[digest]string]{
		Paths: []string{o.TokensFile}, Interval: checkInterval, Report: o.Report,
		Make: func(contents [][]byte) (map[digest]string, error) { return makeTokens(contents[0]) },
	})
	if err != nil {
		return nil, fmt.Errorf("use auth.tokens_file: %w", err)
	}
	return a, nil
}

func makeTokens(text []byte) (map[digest]string, error) {
	tokens, err := config.ParseTokens(text)
	if err != nil {
		return nil, err
	}
	byDigest := make(map[digest]string, len(tokens))
	for token, tenant := range tokens {
		byDigest[sha256.Sum256([]byte(token))] = tenant
	}
	return byDigest, nil
}

// Tenant is a receiver.TenantFunc:
//   - A trusted proxy that sends the header has the word. It authenticated its client, and what it forwards of that client's
//     own credentials is not for us. Only a token of ours that belongs to another tenant contradicts it: ErrForbidden.
//   - Else a token decides. Others' headers count for nothing.
//   - Else, with no tokens and no proxies configured, the tenant is the default one. What else is left is
//     ErrUnauthenticated, or ErrForbidden for a peer that no credentials would help, since there are no tokens.
//
// Values that are there twice or cannot be a tenant's name are ErrMalformed: of two, one may be the client's and one the
// proxy's.
func (a *Authenticator) Tenant(_ context.Context, c receiver.Caller) (string, error) {
	if a.tokens == nil && len(a.proxies) == 0 {
		return receiver.DefaultTenant, nil
	}
	byToken, err := a.byToken(c)
	if err != nil {
		return "", err
	}
	trusted := a.trusts(c.RemoteAddr)
	if trusted {
		named, err := a.named(c)
		switch {
		case err != nil:
			return "", err
		case named != "" && byToken != "" && named != byToken:
			return "", receiver.ErrForbidden
		case named != "":
			return named, nil
		}
	}
	switch {
	case byToken != "":
		return byToken, nil
	case a.tokens == nil && !trusted:
		return "", receiver.ErrForbidden
	}
	return "", receiver.ErrUnauthenticated
}

// byToken is the tenant of the token, or nothing.
func (a *Authenticator) byToken(c receiver.Caller) (string, error) {
	if a.tokens == nil {
		return "", nil
	}
	values := c.Header("Authorization")
	if len(values) > 1 {
		return "", receiver.ErrMalformed
	}
	token, found := bearer(values)
	if !found {
		return "", nil
	}
	return a.tokens.Get()[sha256.Sum256([]byte(token))], nil
}

// named is the tenant that the header names, or nothing.
func (a *Authenticator) named(c receiver.Caller) (string, error) {
	switch values := c.Header(a.header); {
	case len(values) == 0:
		return "", nil
	case len(values) > 1 || !config.ValidTenant(values[0]) || strings.Contains(values[0], ","): // lines may come joined
		return "", receiver.ErrMalformed
	default:
		return values[0], nil
	}
}

func (a *Authenticator) trusts(remote string) bool {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	address := peer.Addr().Unmap().WithZone("")
	for _, p := range a.proxies {
		if p.Contains(address) {
			return true
		}
	}
	return false
}

// bearer is the token in the one value of an Authorization header. The name of the scheme is case-insensitive (RFC 9110,
// 11.1).
func bearer(values []string) (token string, found bool) {
	if len(values) != 1 {
		return "", false
	}
	scheme, token, found := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	return token, found && token != "" && strings.EqualFold(scheme, "Bearer")
}
