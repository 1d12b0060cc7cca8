package receiver

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for everything but OTLP
	"google.golang.org/grpc/mem"

	"ingest-agent/agent/receiver/grpczip" // also registers the codings of messages
)

// message is what the codec fills for an OTLP request: the bytes as they came, in memory that nobody else uses. A second
// message of a call, which the library refuses after the codec has seen it, replaces it.
type message struct {
	lease   *lease
	limit   int
	body    []byte
	refused error // the bytes were not kept, and why
}

// response is an empty Export*ServiceResponse: everything was taken. Its encoding has no bytes.
type response struct{}

// rawCodec hands out OTLP messages unparsed. All other messages, those of the health service, go through protobuf.
type rawCodec struct {
	encoding.CodecV2
}

func newRawCodec() rawCodec { return rawCodec{encoding.GetCodecV2("proto")} }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if _, ours := v.(*response); ours {
		return nil, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ours := v.(*message)
	if !ours {
		return c.CodecV2.Unmarshal(data, v)
	}
	if data.Len() > m.limit {
		m.refused = tooLarge(m.limit)
		return nil
	}
	if m.refused = m.lease.grow(data.Len()); m.refused == nil {
		m.body = data.Materialize() // data goes back to the library's pool
		if grpczip.Damaged(m.body) {
			m.refused = badData("message is damaged, or not in the coding that it is said to be")
		}
	}
	return nil
}
