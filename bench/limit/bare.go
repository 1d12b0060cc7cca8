package limit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Bare is the limit: one write and one fdatasync for each batch, at the end of one file that grows.
func Bare() Side {
	return Side{Name: "bare", Open: func(dir string) (Appender, error) {
		file, err := os.Create(filepath.Join(dir, "file"))
		if err != nil {
			return nil, fmt.Errorf("create file: %w", err)
		}
		parent, err := os.Open(dir)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open directory: %w", err), file.Close())
		}
		// As any log must do once, so that the file is found again.
		if err := errors.Join(parent.Sync(), parent.Close()); err != nil {
			return nil, errors.Join(fmt.Errorf("sync directory: %w", err), file.Close())
		}
		return &bare{file: file}, nil
	}}
}

type bare struct {
	file *os.File
	buf  []byte
}

// Append joins the parts first: one large write is cheaper than many small ones.
func (b *bare) Append(batch [][]byte) error {
	b.buf = b.buf[:0]
	for _, part := range batch {
		b.buf = append(b.buf, part...)
	}
	if _, err := b.file.Write(b.buf); err != nil {
		return fmt.Errorf("write batch: %w", err)
	}
	if err := dataSync(b.file); err != nil {
		return fmt.Errorf("sync batch: %w", err)
	}
	return nil
}

func (b *bare) Close() error { return b.file.Close() }
