package export

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// TestMain answers questions for names itself, so that no test depends on a network: a.b.test has the addresses a and b,
// written with dashes; other names do not exist.
func TestMain(m *testing.M) {
	//nolint:reassign // grpc takes no other resolver, and the one of this process is for its tests only
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go answerNames(server) // ends with the client's end
		return client, nil
	}}
	os.Exit(m.Run())
}

// answerNames is a name server on a stream: each message has its length before it (RFC 1035, 4.2.2).
func answerNames(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(question) != nil || len(m.Questions) != 1 {
			return
		}
		answerName(&m)
		answer, err := m.AppendPack(make([]byte, 2))
		if err != nil {
			return
		}
		binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

func answerName(m *dnsmessage.Message) {
	q := m.Questions[0]
	m.Response, m.Authoritative, m.RecursionAvailable = true, true, true
	m.Additionals = nil
	labels, ok := strings.CutSuffix(q.Name.String(), ".test.")
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
		return
	}
	for label := range strings.SplitSeq(labels, ".") {
		addr, err := netip.ParseAddr(strings.ReplaceAll(label, "-", "."))
		if err != nil {
			m.RCode = dnsmessage.RCodeNameError
			return
		}
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
				Body:   &dnsmessage.AResource{A: addr.As4()},
			})
		}
	}
}
