package otlpgen

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// SeqKey is the attribute that carries the stamp: a string of 16 hexadecimal digits of the sequence number and 8 of the
// checksum. The fixed width lets an encoded request be numbered in place.
const SeqKey = "bench.seq"

const (
	seqDigits   = 16
	checkDigits = 8
	stampLen    = seqDigits + checkDigits
)

// blank stands where the stamp will be. The checksum is over the record with the blank in it, then the sequence number.
var blank = strings.Repeat("0", stampLen)

// castagnoli is the polynomial that processors have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stamp is a place for a stamp in an encoded request.
type stamp struct {
	offset    int
	recordCRC uint32
}

func (s stamp) write(body []byte, seq uint64) {
	digits := body[s.offset : s.offset+stampLen]
	putHex(digits[:seqDigits], seq)
	putHex(digits[seqDigits:], uint64(crc32.Update(s.recordCRC, castagnoli, digits[:seqDigits])))
}

// putHex fills dst with n in lower-case digits.
func putHex(dst []byte, n uint64) {
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = "0123456789abcdef"[n&0xf]
		n >>= 4
	}
}

// record is where a record, and the stamp in it, stand in a body.
type record struct{ whole, stamp span }

// crc is over the record with the stamp blanked.
func (r record) crc(body []byte) uint32 {
	sum := crc32.Update(0, castagnoli, body[r.whole.from:r.stamp.from])
	sum = crc32.Update(sum, castagnoli, []byte(blank))
	return crc32.Update(sum, castagnoli, body[r.stamp.to:r.whole.to])
}

// check returns the record's number, or an error if the record is not as it was made.
func (r record) check(body []byte) (uint64, error) {
	digits := body[r.stamp.from:r.stamp.to]
	seq, err := strconv.ParseUint(string(digits[:seqDigits]), 16, 64)
	if err != nil {
		return 0, fmt.Errorf("read sequence number: %w", err)
	}
	var want [checkDigits]byte
	putHex(want[:], uint64(crc32.Update(r.crc(body), castagnoli, digits[:seqDigits])))
	if !bytes.Equal(digits[seqDigits:], want[:]) {
		return 0, fmt.Errorf("check record %d: it was changed: checksum %s, want %s", seq, digits[seqDigits:], want)
	}
	return seq, nil
}
