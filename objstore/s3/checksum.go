package s3

import (
	"crypto/md5" //nolint:gosec // what the protocol's Content-MD5 is made of; not for secrets
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"net/http"
	"strings"

	"github.com/aws/smithy-go"

	"ingest-agent/objstore"
)

// checksumKind says which checksum goes with a body.
type checksumKind int32

const (
	checksumUnset  checksumKind = iota // none, until the store asks for one
	checksumNone                       // none, whatever the store says
	checksumCRC32C                     // x-amz-checksum-crc32c
	checksumMD5                        // Content-MD5
)

func parseChecksum(value string) (checksumKind, error) {
	switch value {
	case "none":
		return checksumNone, nil
	case "crc32c":
		return checksumCRC32C, nil
	case "md5":
		return checksumMD5, nil
	default:
		return checksumUnset, fmt.Errorf("allowed are none, crc32c, md5")
	}
}

// checksums are the values of the two headers; nil: not sent.
type checksums struct {
	crc32c, md5 *string
}

// sum reads a body and leaves it where it was.
func sum(kind checksumKind, body io.ReadSeeker) (checksums, error) {
	var h hash.Hash
	switch kind {
	case checksumCRC32C:
		h = crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case checksumMD5:
		h = md5.New() //nolint:gosec // see the import
	case checksumUnset, checksumNone:
		return checksums{}, nil
	}
	start, err := body.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = io.Copy(h, body)
	}
	if err == nil {
		_, err = body.Seek(start, io.SeekStart)
	}
	if err != nil {
		return checksums{}, fmt.Errorf("%w: read body: %w", objstore.ErrUnknown, err)
	}
	text := base64.StdEncoding.EncodeToString(h.Sum(nil))
	if kind == checksumMD5 {
		return checksums{md5: &text}, nil
	}
	return checksums{crc32c: &text}, nil
}

// demanded says which checksum the store asked for when it refused a body that had none. Such a refusal is not a matter of
// codes alone: AWS says InvalidRequest to a body without one in a bucket with object lock. Content-MD5 comes first, since
// stores that know it alone are older than those that know both.
func demanded(err error) (checksumKind, bool) {
	var answer smithy.APIError
	if statusOf(err) != http.StatusBadRequest || !errors.As(err, &answer) {
		return checksumUnset, false
	}
	text := strings.ToLower(answer.ErrorCode() + " " + answer.ErrorMessage())
	switch {
	case strings.Contains(text, "missingcontentmd5") || strings.Contains(text, "content-md5"):
		return checksumMD5, true
	case strings.Contains(text, "x-amz-checksum") || strings.Contains(text, "missingchecksum"):
		return checksumCRC32C, true
	default:
		return checksumUnset, false
	}
}
