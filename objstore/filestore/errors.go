package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"ingest-agent/objstore"
)

// kind adds the kind of an error of the file system. A full disk is ErrUnknown: nothing was done, but it passes, and a
// caller who waits is right.
func kind(err error) error {
	var k error
	switch {
	case err == nil || hasKind(err):
		return err
	case errors.Is(err, fs.ErrNotExist):
		k = objstore.ErrNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		k = objstore.ErrDenied
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EFBIG), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR),
		errors.Is(err, fs.ErrExist), errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EILSEQ):
		k = objstore.ErrInvalid // a key that the file system does not take, or one above or below another
	default:
		k = objstore.ErrUnknown
	}
	return fmt.Errorf("%w: %w", k, err)
}

// kindOfWrite is kind for a write, to which the lack of a file that it needs says nothing about the object.
func kindOfWrite(err error) error {
	if errors.Is(err, fs.ErrNotExist) && !hasKind(err) {
		return fmt.Errorf("%w: %w", objstore.ErrUnknown, err)
	}
	return kind(err)
}

func hasKind(err error) bool {
	for _, k := range []error{
		objstore.ErrNotFound, objstore.ErrPrecondition, objstore.ErrNotModified, objstore.ErrUnknown, objstore.ErrDenied,
		objstore.ErrUnsupported, objstore.ErrInvalid,
	} {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}

// isAbsent says whether err means that there is nothing of that name, also because an object stands above it.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// ended is the error of a call whose context has ended.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", objstore.ErrUnknown, ctx.Err())
}
