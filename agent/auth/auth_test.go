package auth

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ingest-agent/agent/config"
	"ingest-agent/agent/receiver"
)

const tenantHeader = "X-Scope-OrgID"

func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := name
	if !filepath.IsAbs(name) {
		path = filepath.Join(t.TempDir(), name)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// from is a caller at an address; headers are "name: value".
func from(address string, headers ...string) receiver.Caller {
	all := http.Header{}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		all.Add(name, value)
	}
	return receiver.Caller{Header: all.Values, RemoteAddr: address}
}

const (
	proxy    = "10.1.2.3:4000"
	stranger = "192.0.2.7:4000"
)

func TestTenant(t *testing.T) {
	tokens := writeFile(t, "tokens", "secret-a: acme\nsecret-b: Big Corp.\n")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("::1/128")}
	none := Options{TenantHeader: tenantHeader}
	onlyTokens := Options{TenantHeader: tenantHeader, TokensFile: tokens}
	onlyProxies := Options{TenantHeader: tenantHeader, TrustedProxies: trusted}
	both := Options{TenantHeader: tenantHeader, TokensFile: tokens, TrustedProxies: trusted}
	const (
		named  = "X-Scope-OrgID: initech"
		tokenA = "Authorization: Bearer secret-a"
		wrong  = "Authorization: Bearer secret-x"
	)
	for _, c := range []struct {
		name    string
		options Options
		caller  receiver.Caller
		want    string
		err     error
	}{
		{"nothing configured", none, from(stranger), "default", nil},
		{"nothing configured, header", none, from(stranger, named), "default", nil},
		{"nothing configured, token", none, from(stranger, wrong), "default", nil},

		{"token", onlyTokens, from(stranger, tokenA), "acme", nil},
		{"token of a tenant with spaces", onlyTokens, from(stranger, "Authorization: Bearer secret-b"), "Big Corp.", nil},
		{"scheme in other case", onlyTokens, from(stranger, "Authorization: bEARER  secret-a "), "acme", nil},
		{"wrong token", onlyTokens, from(stranger, wrong), "", receiver.ErrUnauthenticated},
		{"no token", onlyTokens, from(stranger), "", receiver.ErrUnauthenticated},
		{"empty token", onlyTokens, from(stranger, "Authorization: Bearer "), "", receiver.ErrUnauthenticated},
		{"token without scheme", onlyTokens, from(stranger, "Authorization: secret-a"), "", receiver.ErrUnauthenticated},
		{"other scheme", onlyTokens, from(stranger, "Authorization: Basic secret-a"), "", receiver.ErrUnauthenticated},
		{"part of a token", onlyTokens, from(stranger, "Authorization: Bearer secret-"), "", receiver.ErrUnauthenticated},
		{"two tokens", onlyTokens, from(stranger, tokenA, tokenA), "", receiver.ErrMalformed},
		{"header without proxies", onlyTokens, from(proxy, named), "", receiver.ErrUnauthenticated},
		{"header of a client", onlyTokens, from(proxy, named, tokenA), "acme", nil},

		{"proxy", onlyProxies, from(proxy, named), "initech", nil},
		{"proxy, IPv6", onlyProxies, from("[fd12::1]:1", named), "initech", nil},
		{"proxy, IPv4 in IPv6", onlyProxies, from("[::ffff:10.1.2.3]:1", named), "initech", nil},
		{"proxy, with a zone", onlyProxies, from("[fd12::1%eth0]:1", named), "initech", nil},
		{"proxy without header", onlyProxies, from(proxy), "", receiver.ErrUnauthenticated},
		{"stranger", onlyProxies, from(stranger, named), "", receiver.ErrForbidden},
		{"stranger without header", onlyProxies, from(stranger), "", receiver.ErrForbidden},
		{"stranger, claims an address", onlyProxies, from(stranger, named, "X-Forwarded-For: 10.1.2.3", "Forwarded: for=10.1.2.3"), "", receiver.ErrForbidden},
		{"no address", onlyProxies, from("@", named), "", receiver.ErrForbidden},
		{"header twice", onlyProxies, from(proxy, named, named), "", receiver.ErrMalformed},
		{"header lines joined", onlyProxies, from(proxy, named+", acme"), "", receiver.ErrMalformed},
		{"empty header", onlyProxies, from(proxy, "X-Scope-OrgID: "), "", receiver.ErrMalformed},
		{"control character", onlyProxies, from(proxy, named+"\x01"), "", receiver.ErrMalformed},
		{"no UTF-8", onlyProxies, from(proxy, named+"\xff"), "", receiver.ErrMalformed},
		{"space at the end", onlyProxies, from(proxy, named+" "), "", receiver.ErrMalformed},
		{"longest name", onlyProxies, from(proxy, "X-Scope-OrgID: "+strings.Repeat("x", 255)), strings.Repeat("x", 255), nil},
		{"too long", onlyProxies, from(proxy, "X-Scope-OrgID: "+strings.Repeat("x", 256)), "", receiver.ErrMalformed},

		{"both: proxy", both, from(proxy, named), "initech", nil},
		{"both: proxy with its client's credentials", both, from(proxy, named, wrong), "initech", nil},
		{"both: proxy and token disagree", both, from(proxy, named, tokenA), "", receiver.ErrForbidden},
		{"both: proxy and token agree", both, from(proxy, "X-Scope-OrgID: acme", tokenA), "acme", nil},
		{"both: proxy, token only", both, from(proxy, tokenA), "acme", nil},
		{"both: proxy, nothing", both, from(proxy), "", receiver.ErrUnauthenticated},
		{"both: stranger, token", both, from(stranger, tokenA), "acme", nil},
		{"both: stranger, token and header", both, from(stranger, tokenA, named), "acme", nil},
		{"both: stranger, header", both, from(stranger, named), "", receiver.ErrUnauthenticated},
	} {
		a, err := New(c.options)
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.Tenant(t.Context(), c.caller)
		if got != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %q, %v; want %q, %v", c.name, got, err, c.want, c.err)
		}
	}
}

// Tokens come and go without a restart; a bad file changes nothing, is reported once, and the report shows no token.
func TestTokensFileIsReadAgain(t *testing.T) {
	path := writeFile(t, "tokens", "hush-1: acme\n")
	synctest.Test(t, func(t *testing.T) {
		var heard []error
		a, err := New(Options{TokensFile: path, Report: func(err error) { heard = append(heard, err) }})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(what string, tenants ...string) { // of hush-1, hush-2
			t.Helper()
			for i, want := range tenants {
				got, err := a.Tenant(t.Context(), from(stranger, fmt.Sprintf("Authorization: Bearer hush-%d", i+1)))
				if got != want || (err == nil) != (want != "") {
					t.Errorf("%s: hush-%d: %q, %v; want %q", what, i+1, got, err, want)
				}
			}
		}
		expect("at first", "acme", "")
		writeFile(t, path, "hush-2: initech\n")
		time.Sleep(checkInterval)
		expect("replaced", "", "initech")
		for _, bad := range []string{"hush-2: initech\nhush-1\n", "hush-2: [\n", "hush-2: x\nhush-2: y\n", ""} {
			writeFile(t, path, bad)
			for range 3 {
				time.Sleep(checkInterval)
				expect("bad", "", "initech")
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(checkInterval)
		expect("gone", "", "initech")
		writeFile(t, path, "{}")
		time.Sleep(checkInterval)
		expect("none left", "", "")
		if len(heard) != 7 || heard[0] != nil || heard[6] != nil {
			t.Errorf("reported %v", heard)
		}
		for _, err := range heard[1:6] {
			if err == nil || strings.Contains(err.Error(), "hush") {
				t.Errorf("report %v", err)
			}
		}
	})
}

func TestBadFilesAreRefusedAtTheStart(t *testing.T) {
	for _, text := range []string{"", "hush", "hush: [a]"} {
		if _, err := New(Options{TokensFile: writeFile(t, "tokens", text)}); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := New(Options{TokensFile: "/nonexistent/tokens"}); err == nil {
		t.Error("no error without a file")
	}
	if _, err := Guard(writeFile(t, "token", "two words"), nil, nil); err == nil || strings.Contains(err.Error(), "words") {
		t.Errorf("token of the admin endpoint: %v", err)
	}
}

func TestGuard(t *testing.T) {
	path := writeFile(t, "token", "  hush-1\n")
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	synctest.Test(t, func(t *testing.T) {
		guarded, err := Guard(path, nil, next, "/livez", "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		expect := func(target string, code int, authorization ...string) {
			t.Helper()
			r := httptest.NewRequest(http.MethodGet, "http://admin", http.NoBody)
			r.URL.Path = target
			for _, v := range authorization {
				r.Header.Add("Authorization", v)
			}
			w := httptest.NewRecorder()
			guarded.ServeHTTP(w, r)
			if w.Code != code || (w.Header().Get("WWW-Authenticate") == "Bearer") != (code == http.StatusUnauthorized) {
				t.Errorf("%s %v: %d %v", target, authorization, w.Code, w.Header())
			}
		}
		expect("/metrics", http.StatusTeapot, "Bearer hush-1")
		expect("/livez", http.StatusTeapot)
		expect("/readyz", http.StatusTeapot, "Bearer wrong")
		for _, path := range []string{"/metrics", "/", "", "/livez/", "//livez", "/readyz/../metrics", "/api/v1/state"} {
			expect(path, http.StatusUnauthorized)
		}
		expect("/metrics", http.StatusUnauthorized, "Bearer hush-")
		expect("/metrics", http.StatusUnauthorized, "Bearer ")
		expect("/metrics", http.StatusUnauthorized, "Basic hush-1")
		expect("/metrics", http.StatusUnauthorized, "Bearer hush-1", "Bearer hush-1")
		writeFile(t, path, "hush-2")
		time.Sleep(checkInterval)
		expect("/metrics", http.StatusUnauthorized, "Bearer hush-1")
		expect("/metrics", http.StatusTeapot, "Bearer hush-2")
		writeFile(t, path, "")
		time.Sleep(checkInterval)
		expect("/metrics", http.StatusUnauthorized)
		expect("/metrics", http.StatusTeapot, "Bearer hush-2")
	})
}

// Whatever a client says, it gets a tenant of the file, or of the header if it is trusted, or one of the known errors.
func FuzzTenant(f *testing.F) {
	for _, seed := range []string{"Bearer secret-a", "bearer  secret-a ", "Basic x", "Bearer", "", "Bearer \x00"} {
		f.Add(seed, "initech", uint8(1), uint8(1), true)
		f.Add(seed, "a, b", uint8(1), uint8(2), false)
		f.Add(seed, "\xff", uint8(0), uint8(1), true)
		f.Add(seed, strings.Repeat("x", 256), uint8(2), uint8(1), true)
	}
	a, err := New(Options{
		TokensFile: writeFile(f, "tokens", "secret-a: acme\n"), TenantHeader: tenantHeader,
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, authorization, header string, authorizations, headers uint8, trusted bool) {
		values := map[string][]string{}
		for range authorizations % 3 {
			values["Authorization"] = append(values["Authorization"], authorization)
		}
		for range headers % 3 {
			values[tenantHeader] = append(values[tenantHeader], header)
		}
		c := receiver.Caller{Header: func(name string) []string { return values[name] }, RemoteAddr: stranger}
		if trusted {
			c.RemoteAddr = proxy
		}
		tenant, err := a.Tenant(t.Context(), c)
		fields := strings.Fields(authorization)
		proved := authorizations%3 == 1 && len(fields) == 2 && strings.EqualFold(fields[0], "Bearer") && fields[1] == "secret-a"
		claimed := trusted && headers%3 == 1
		switch {
		case err == nil:
			if !config.ValidTenant(tenant) || !(tenant == "acme" && proved || tenant == header && claimed) {
				t.Fatalf("%q, %q from %s is %q", authorization, header, c.RemoteAddr, tenant)
			}
		case tenant != "":
			t.Fatalf("an error with tenant %q", tenant)
		case !errors.Is(err, receiver.ErrForbidden) && !errors.Is(err, receiver.ErrUnauthenticated) && !errors.Is(err, receiver.ErrMalformed):
			t.Fatal(err)
		}
	})
}

// Whatever a tokens file holds, its tokens could be sent and its tenants be stored, and an error shows nothing of it.
func FuzzTokens(f *testing.F) {
	for _, seed := range []string{
		"abc: acme\n\"0123\": Big Corp.\n", "- a\n", "a: b\na: c\n", "a: &x b\nc: *x\n", "a: {b: c}\n", "? [a]\n: b\n", "a: ~\n", "a: !!binary aGk=\n",
		"{}", "a: b\n---\nc: d\n", "a: \"b\\u0001\"\n", "<<: {a: b}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		tokens, err := makeTokens(text)
		if err != nil {
			if len(err.Error()) > 100 || tokens != nil {
				t.Fatalf("%d tokens, error %q", len(tokens), err)
			}
			return
		}
		for _, tenant := range tokens {
			if !config.ValidTenant(tenant) {
				t.Fatalf("tenant %q", tenant)
			}
		}
	})
}
