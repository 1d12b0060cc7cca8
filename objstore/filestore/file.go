package filestore

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"

	"ingest-agent/objstore"
)

// The first line of an object's file, of a fixed length:
//
//	ingest-agent object 1 01JEQ2Z6T0W6X9Q8Q7N3M5K4HV 2b4eb335
//
// It is what the file is, the version of this format, the object's version, whose time is when the object was put, and the
// CRC32C of all before it in hexadecimal.
const (
	magic         = "ingest-agent object "
	formatVersion = magic + "1 "
	sumBytes      = 8
	headerBytes   = len(formatVersion) + ulid.EncodedSize + 1 + sumBytes + 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func header(version ulid.ULID) string {
	text := formatVersion + version.String() + " "
	return text + fmt.Sprintf("%0*x\n", sumBytes, crc32.Checksum([]byte(text), castagnoli))
}

// parseHeader is the inverse of header.
func parseHeader(line string) (version ulid.ULID, ok bool) {
	if len(line) != headerBytes || !strings.HasPrefix(line, formatVersion) {
		return version, false
	}
	version, err := ulid.ParseStrict(line[len(formatVersion) : len(formatVersion)+ulid.EncodedSize])
	return version, err == nil && header(version) == line
}

// file is an object's file, open for reading.
type file struct {
	*os.File
	version     objstore.Version
	modified    time.Time
	headerBytes int64 // 0: the file has no header
	sizeBytes   int64 // of the body
	unreadable  bool  // the file has a header, but not one that is understood
}

func (f *file) info(key string) objstore.Info {
	return objstore.Info{Key: key, SizeBytes: f.sizeBytes, Version: f.version, Modified: f.modified}
}

// openFile opens the file of an object. Its error is fs.ErrNotExist also where a directory or the like is there, and where
// the key is below an object.
func openFile(path string) (*file, error) {
	// Opening a named pipe would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if isAbsent(err) || errors.Is(err, syscall.ELOOP) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	opened, err := readHeader(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return opened, nil
}

func readHeader(f *os.File) (*file, error) {
	stat, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !stat.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	line := make([]byte, headerBytes)
	n, err := f.ReadAt(line, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if version, ok := parseHeader(string(line[:n])); ok {
		return &file{
			File: f, version: objstore.Version(version.String()), modified: version.Timestamp(),
			headerBytes: int64(headerBytes), sizeBytes: stat.Size() - int64(headerBytes),
		}, nil
	}
	return &file{
		File: f, version: objstore.Version(fmt.Sprintf("file-%d-%d", stat.Size(), stat.ModTime().UnixNano())), modified: stat.ModTime(),
		sizeBytes: stat.Size(), unreadable: strings.HasPrefix(string(line[:n]), magic),
	}, nil
}
