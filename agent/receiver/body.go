package receiver

import (
	"errors"
	"io"
	"net"
)

// readBody reads r to its end behind dst, whose capacity the lease already holds, and accounts for each growth. announced
// is the length that the client gave, or negative. More than limit bytes are refused.
func readBody(r io.Reader, dst []byte, announced int64, limit int, l *lease) ([]byte, error) {
	if announced > int64(limit) {
		return dst, tooLarge(limit)
	}
	for {
		if len(dst) == cap(dst) && int64(len(dst)) != announced {
			grown, err := growBody(dst, announced, limit, l)
			if err != nil {
				return dst, err
			}
			dst = grown
		}
		n, err := readSome(r, dst)
		if len(dst)+n > limit {
			return dst, tooLarge(limit)
		}
		dst = dst[:len(dst)+n]
		if errors.Is(err, io.EOF) {
			return dst, nil
		}
		if err != nil {
			return dst, readRefusal(err)
		}
	}
}

// readSome reads into the free capacity of dst; a full dst has only its end to be found.
func readSome(r io.Reader, dst []byte) (int, error) {
	if free := dst[len(dst):cap(dst)]; len(free) > 0 {
		return r.Read(free)
	}
	var probe [1]byte
	n, err := r.Read(probe[:])
	if n > 0 {
		return 0, errors.New("body is longer than announced")
	}
	return 0, err
}

// growBody gives dst more capacity: towards the announced length, or doubling up to one byte above the limit, which
// shows that there is more.
func growBody(dst []byte, announced int64, limit int, l *lease) ([]byte, error) {
	size := max(growFactor*cap(dst), claimBytes)
	if announced >= 0 {
		size = min(size, int(announced))
	} else {
		size = min(max(2*cap(dst), smallBytes), limit+1)
	}
	if err := l.grow(size - cap(dst)); err != nil {
		return nil, err
	}
	grown := make([]byte, len(dst), size)
	copy(grown, dst)
	return grown, nil
}

// smallBytes is the first buffer for a body of unknown length.
const smallBytes = 4 << 10

// readRefusal is the answer to a client whose body could not be read.
func readRefusal(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return slowClient()
	}
	return badData("body ends early or is not framed as HTTP says")
}
