package tlsfiles

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"ingest-agent/agent/tlsfiles/tlstest"
)

// always makes each connection look at the files; package reload tests the always.
const always = time.Nanosecond

// seen is what a connection came to: the serial numbers that each side saw of the other, and whether a session was resumed.
type seen struct {
	server, client int64
	resumed        bool
}

// shake makes a connection between the two configurations.
func shake(t *testing.T, server, client *tls.Config) (saw seen, err error) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			s := conn.(*tls.Conn)
			defer s.Close()
			if _, err = s.Write([]byte("x")); err == nil { // TLS 1.3: the client's handshake ends before its certificate is judged
				if peers := s.ConnectionState().PeerCertificates; len(peers) > 0 {
					saw.client = peers[0].SerialNumber.Int64()
				}
			}
		}
		served <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(conn, client)
	_, err = io.ReadFull(c, make([]byte, 1))
	_ = c.Close() // ends the server's wait, too
	if err := errors.Join(<-served, err); err != nil {
		return seen{}, err
	}
	state := c.ConnectionState()
	saw.server, saw.resumed = state.PeerCertificates[0].SerialNumber.Int64(), state.DidResume
	return saw, nil
}

// reports keeps what was reported.
type reports []error

func (r *reports) add(err error) { *r = append(*r, err) }

func (r *reports) expect(t *testing.T, texts ...string) {
	t.Helper()
	if len(*r) != len(texts) {
		t.Fatalf("reported %v, want %d reports", *r, len(texts))
	}
	for i, err := range *r {
		if (err == nil) != (texts[i] == "") || err != nil && !strings.Contains(err.Error(), texts[i]) {
			t.Errorf("report %d is %v, want %q", i, err, texts[i])
		}
	}
	*r = nil
}

// The whole life of a listener's files: replaced, bad, half replaced, gone, good again.
func TestServerReload(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewAuthority(t, dir, "ca")
	first := ca.Issue(t, dir, "server")
	var heard reports
	server, err := ServerConfig(Server{CertFile: first.CertFile, KeyFile: first.KeyFile, ReloadInterval: always, Report: heard.add})
	if err != nil {
		t.Fatal(err)
	}
	client := &tls.Config{RootCAs: ca.Pool, ServerName: "localhost"}
	expect := func(what string, want tlstest.Pair) {
		t.Helper()
		if got, err := shake(t, server, client); got.server != want.Serial || err != nil {
			t.Errorf("%s: %+v, %v; want serial %d", what, got, err, want.Serial)
		}
	}
	expect("at first", first)
	heard.expect(t)
	second := ca.Issue(t, dir, "server")
	expect("replaced", second)
	heard.expect(t, "")

	tlstest.Write(t, second.CertFile, []byte("rubbish"))
	expect("a bad certificate", second)
	expect("still bad, reported once", second)
	heard.expect(t, "use cert_file")

	third := ca.Issue(t, dir, "server")
	key, err := os.ReadFile(third.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	other := ca.Issue(t, dir, "other")
	otherKey, err := os.ReadFile(other.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	tlstest.Write(t, third.KeyFile, otherKey)
	expect("the key of another certificate", second)
	heard.expect(t, "private key does not match")
	if err := os.Remove(third.KeyFile); err != nil {
		t.Fatal(err)
	}
	expect("no key", second)
	heard.expect(t, "no such file")
	tlstest.Write(t, third.KeyFile, key)
	expect("whole again", third)
	heard.expect(t, "")
	expect("unchanged", third)
	heard.expect(t)
}

func TestServerWithoutIntervalReadsOnce(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewAuthority(t, dir, "ca")
	first := ca.Issue(t, dir, "server")
	server, err := ServerConfig(Server{CertFile: first.CertFile, KeyFile: first.KeyFile})
	if err != nil {
		t.Fatal(err)
	}
	ca.Issue(t, dir, "server")
	if got, err := shake(t, server, &tls.Config{RootCAs: ca.Pool, ServerName: "localhost"}); got.server != first.Serial || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// Clients need a certificate of an authority in the file, as the file is now; a session of one that was taken out is not
// resumed.
func TestClientAuthorities(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := tlstest.NewAuthority(t, dir, "ours"), tlstest.NewAuthority(t, dir, "theirs")
	pair := ours.Issue(t, dir, "server")
	mine, foreign := ours.Issue(t, dir, "mine"), theirs.Issue(t, dir, "foreign")
	clientCA := dir + "/clients.ca"
	copyFile(t, ours.CAFile, clientCA)
	var heard reports
	server, err := ServerConfig(Server{
		CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: clientCA, ReloadInterval: always, Report: heard.add,
	})
	if err != nil {
		t.Fatal(err)
	}
	with := func(p tlstest.Pair) *tls.Config {
		return &tls.Config{
			RootCAs: ours.Pool, ServerName: "localhost", Certificates: []tls.Certificate{p.Load(t)},
			ClientSessionCache: tls.NewLRUClientSessionCache(0),
		}
	}
	own, other, none := with(mine), with(foreign), &tls.Config{RootCAs: ours.Pool, ServerName: "localhost"}
	expect := func(what string, client *tls.Config, want tlstest.Pair) {
		t.Helper()
		got, err := shake(t, server, client)
		if got.client != want.Serial || (err == nil) != (want.Serial != 0) || got.resumed != strings.Contains(what, "resumes") {
			t.Errorf("%s: %+v, %v; want serial %d", what, got, err, want.Serial)
		}
	}
	expect("no certificate", none, tlstest.Pair{})
	expect("a foreign one", other, tlstest.Pair{})
	expect("a good one", own, mine)
	tlstest.Write(t, clientCA, []byte("rubbish"))
	expect("bad file, good client resumes", own, mine)
	expect("bad file, foreign client", other, tlstest.Pair{})
	expect("bad file, no certificate", none, tlstest.Pair{})
	heard.expect(t, "use client_ca_file")
	copyFile(t, theirs.CAFile, clientCA)
	expect("taken out, with a session to go on with", own, tlstest.Pair{})
	expect("taken in", other, foreign)
	heard.expect(t, "")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	tlstest.Write(t, to, data)
}

// A client's own certificate and the authorities that it trusts are reloaded; names and addresses are verified all the same.
func TestClientReload(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := tlstest.NewAuthority(t, dir, "ours"), tlstest.NewAuthority(t, dir, "theirs")
	pair, foreign, mine := ours.Issue(t, dir, "server"), theirs.Issue(t, dir, "foreign"), ours.Issue(t, dir, "mine")
	ca := dir + "/servers.ca"
	copyFile(t, ours.CAFile, ca)
	good, err := ServerConfig(Server{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: ours.CAFile})
	if err != nil {
		t.Fatal(err)
	}
	bad, err := ServerConfig(Server{CertFile: foreign.CertFile, KeyFile: foreign.KeyFile, ClientCAFile: ours.CAFile})
	if err != nil {
		t.Fatal(err)
	}
	for _, every := range []time.Duration{0, always} {
		var heard reports
		make := func(name string) *tls.Config {
			t.Helper()
			c, err := ClientConfig(Client{
				CAFile: ca, CertFile: mine.CertFile, KeyFile: mine.KeyFile, ServerName: name, ReloadInterval: every, Report: heard.add,
			})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		client := make("127.0.0.1")
		expect := func(what string, server, client *tls.Config, ok bool) {
			t.Helper()
			got, err := shake(t, server, client)
			if (err == nil) != ok || ok && (got.server == 0 || got.client != mine.Serial) {
				t.Errorf("reloaded every %s, %s: %+v, %v", every, what, got, err)
			}
		}
		expect("address", good, client, true)
		expect("name", good, make("localhost"), true)
		expect("wrong name", good, make("other"), false)
		expect("wrong address", good, make("127.0.0.2"), false)
		expect("foreign server", bad, client, false)
		if every == 0 {
			continue
		}
		mine = ours.Issue(t, dir, "mine")
		tlstest.Write(t, ca, []byte("rubbish"))
		expect("new own certificate, bad authorities", good, client, true)
		expect("bad authorities, foreign server", bad, client, false)
		copyFile(t, theirs.CAFile, ca)
		expect("authority taken out", good, client, false)
		expect("authority taken in", bad, client, true)
	}
}

func TestBadFilesAreRefusedAtTheStart(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewAuthority(t, dir, "ca")
	good, other := ca.Issue(t, dir, "good"), ca.Issue(t, dir, "other")
	tlstest.Write(t, dir+"/rubbish", []byte("rubbish"))
	for name, make := range map[string]func() (*tls.Config, error){
		"no file": func() (*tls.Config, error) {
			return ServerConfig(Server{CertFile: dir + "/none", KeyFile: good.KeyFile})
		},
		"other key": func() (*tls.Config, error) {
			return ServerConfig(Server{CertFile: good.CertFile, KeyFile: other.KeyFile})
		},
		"bad client authorities": func() (*tls.Config, error) {
			return ServerConfig(Server{CertFile: good.CertFile, KeyFile: good.KeyFile, ClientCAFile: dir + "/rubbish"})
		},
		"client: no key": func() (*tls.Config, error) { return ClientConfig(Client{CertFile: good.CertFile}) },
		"client: other key": func() (*tls.Config, error) {
			return ClientConfig(Client{CertFile: good.CertFile, KeyFile: other.KeyFile})
		},
		"client: bad authorities": func() (*tls.Config, error) { return ClientConfig(Client{CAFile: dir + "/rubbish"}) },
		"client: reload, no name": func() (*tls.Config, error) { return ClientConfig(Client{CAFile: ca.CAFile, ReloadInterval: always}) },
	} {
		if c, err := make(); err == nil || c != nil {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}
