package receiver

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/semaphore"
)

// Memory. For max_request_size m of a transport, all its requests together hold at most:
//   - bodies that are being read or are with the store: inFlightBytes or inFlightRequests * m, both transports together;
//   - inflated bodies in work: grpczip.Places() * m for each transport (and coding of gRPC), and the decoders' windows;
//   - objects of JSON: m / jsonBytesPerObject of them;
//   - gRPC messages on the way in, which the library buffers whole: receiveBytes, or minReceivePlaces * m.
const (
	// inFlightBytes and inFlightRequests bound the bodies in memory: the greater of both. A request beyond it is refused
	// with a short delay. It is far more than one group commit takes.
	inFlightBytes    = 64 << 20
	inFlightRequests = 4

	// jsonBytesPerObject relates objects in JSON to max_request_size: "{}," is 3 bytes but costs some 200 as an object in
	// memory. Real requests have about 30 bytes and more for each object.
	jsonBytesPerObject = 32
	// minJSONObjects is for small limits.
	minJSONObjects = 1 << 10
	// maxJSONDepth is above what 49 nested values (the most that is accepted in protobuf) need in JSON, four levels each.
	maxJSONDepth = 256

	// receiveBytes bounds the gRPC messages that are being received, by the number that may be at once.
	receiveBytes     = 512 << 20
	minReceivePlaces = 8

	// minZstdWindowBytes is the window of a zstd frame over HTTP that is always taken, as RFC 9659 asks. One up to
	// max_request_size is taken too, since encoders in use ask for more at high levels.
	minZstdWindowBytes = 8 << 20

	// claimBytes is what an announced length is believed for: the buffer grows further only as bytes arrive.
	claimBytes = 64 << 10
	// growFactor is by how much a read buffer grows towards an announced length, so that little is copied.
	growFactor = 4
	// maxPooledBytes is the largest buffer for compressed or JSON bodies as sent that is kept for the next request.
	maxPooledBytes = 256 << 10

	// drainBytes is how much of a refused body is read and dropped after the answer. Many clients read the answer only
	// after they have sent everything; cut off before, they see a broken connection instead.
	drainBytes = 16 << 20

	minRequestSizeBytes = 1
	maxRequestSizeBytes = 1 << 30
)

// Time.
const (
	headerTimeout = 10 * time.Second // for the headers of an HTTP request, and the handshake of a connection
	drainTimeout  = 2 * time.Second  // for the rest of a refused HTTP body
	answerTimeout = 10 * time.Second // for a client to take an HTTP answer
	idleTimeout   = 2 * time.Minute  // of an HTTP connection between requests
	// forcedWait is what requests in hand get after their connections were cut.
	forcedWait = 500 * time.Millisecond
	// shortDelay is asked for where no better delay is known.
	shortDelay = time.Second
)

// maxConnections bounds the open connections of each listener, each of which costs memory and a file descriptor, of which
// the write-ahead log needs some too. One more is closed at once, which clients take for a reason to come back later.
const maxConnections = 4096

// maxHeaderBytes bounds the headers of a request on both transports.
const maxHeaderBytes = 64 << 10

// live is what requests of one version of the settings share.
type live struct {
	Settings
	bodies    *semaphore.Weighted // bytes
	receiving *semaphore.Weighted // gRPC messages on the way in
	inflater  *inflater
	json      *jsonDecoder
	rates     map[string]*rate
}

func newLive(s Settings) (*live, error) {
	for _, n := range []int{s.GRPCMaxRequestSizeBytes, s.HTTPMaxRequestSizeBytes} {
		if n < minRequestSizeBytes || n > maxRequestSizeBytes {
			return nil, fmt.Errorf("max request size %d: want %d to %d bytes", n, minRequestSizeBytes, maxRequestSizeBytes)
		}
	}
	if s.ReadTimeout <= 0 {
		return nil, errors.New("read timeout: want more than 0")
	}
	inflater, err := newInflater(s.HTTPMaxRequestSizeBytes)
	if err != nil {
		return nil, err
	}
	return &live{
		Settings:  s,
		bodies:    semaphore.NewWeighted(bodiesBytes(s)),
		receiving: semaphore.NewWeighted(int64(receivePlaces(s.GRPCMaxRequestSizeBytes))),
		inflater:  inflater,
		json:      newJSONDecoder(s.HTTPMaxRequestSizeBytes),
		rates:     newRates(s.TenantBytesPerSecond),
	}, nil
}

func bodiesBytes(s Settings) int64 {
	limit := max(s.GRPCMaxRequestSizeBytes, s.HTTPMaxRequestSizeBytes)
	return max(inFlightBytes, inFlightRequests*int64(limit))
}

func receivePlaces(limit int) int {
	return min(max(receiveBytes/limit, minReceivePlaces), maxConcurrentStreams)
}

// lease is what one request holds of the bytes that may be in memory at once.
type lease struct {
	bodies *semaphore.Weighted
	held   int64
}

// grow takes n more bytes, or returns errBusy: a request never waits for bytes while it holds some, since all of them
// could be waiting.
func (l *lease) grow(n int) error {
	if !l.bodies.TryAcquire(int64(n)) {
		return errBusy
	}
	l.held += int64(n)
	return nil
}

func (l *lease) shrink(n int) {
	l.bodies.Release(int64(n))
	l.held -= int64(n)
}

func (l *lease) release() { l.shrink(int(l.held)) }
