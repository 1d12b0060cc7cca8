package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ingest-agent/objstore"
)

// pageEntries is the most that a page has, as on S3.
const pageEntries = 1000

// List returns one page of the objects there are. Each page reads the directories that it touches as a whole. A directory
// that a killed process left empty may be among the prefixes.
func (s *Store) List(ctx context.Context, o objstore.ListOptions) (*objstore.Page, error) {
	if o.Delimiter != "" && o.Delimiter != "/" || o.Limit < 0 {
		return nil, fmt.Errorf("list objects by delimiter %q, %d a page: %w", o.Delimiter, o.Limit, objstore.ErrInvalid)
	}
	w := walk{store: s, options: o, limit: pageEntries, after: o.After, page: &objstore.Page{}}
	if o.Limit > 0 {
		w.limit = min(o.Limit, pageEntries)
	}
	if o.Token != "" {
		w.after = o.Token
		if strings.HasSuffix(o.Token, "/") { // no key ends so: it is a prefix that was listed
			w.done = o.Token
		}
	}
	dir := o.Prefix[:strings.LastIndexByte(o.Prefix, '/')+1]
	if _, err := s.path(strings.TrimSuffix(dir, "/")); dir == "" || err == nil { // else no key begins so
		if _, err := w.directory(ctx, dir); err != nil {
			return nil, fmt.Errorf("list objects %s: %w", o.Prefix, kind(err))
		}
	}
	w.page.Date = time.Now()
	return w.page, nil
}

// walk goes over the files in the order of keys.
type walk struct {
	store   *Store
	options objstore.ListOptions
	limit   int
	after   string // keys up to here are passed over
	done    string // and those that begin with this, if it is not ""
	page    *objstore.Page
	last    string // entry of the page
}

// directory lists what is in a directory, given by what its keys begin with. full says that the page is, and that there is more.
func (w *walk) directory(ctx context.Context, dir string) (full bool, err error) {
	names, err := w.store.names(dir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if err := ended(ctx); err != nil {
			return false, err
		}
		if name = dir + name; strings.HasSuffix(name, "/") {
			full, err = w.below(ctx, name)
		} else {
			full, err = w.object(name)
		}
		if full || err != nil {
			return full, err
		}
	}
	return false, nil
}

func (w *walk) passed(name string) bool { return w.done != "" && strings.HasPrefix(name, w.done) }

func (w *walk) below(ctx context.Context, dir string) (full bool, err error) {
	prefix := w.options.Prefix
	inside := strings.HasPrefix(dir, prefix)
	switch {
	case !inside && !strings.HasPrefix(prefix, dir):
		return false, nil
	case w.passed(dir), dir < w.after && !strings.HasPrefix(w.after, dir): // so are all keys in it
		return false, nil
	case !inside || w.options.Delimiter == "":
		return w.directory(ctx, dir)
	case w.full():
		return true, nil
	}
	w.page.Prefixes = append(w.page.Prefixes, dir)
	w.last = dir
	return false, nil
}

func (w *walk) object(key string) (full bool, err error) {
	if !strings.HasPrefix(key, w.options.Prefix) || key <= w.after || w.passed(key) {
		return false, nil
	}
	if w.full() {
		return true, nil
	}
	f, err := openFile(filepath.Join(w.store.dir, filepath.FromSlash(key)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // deleted since
	}
	if err != nil {
		return false, err
	}
	w.page.Objects = append(w.page.Objects, f.info(key))
	w.last = key
	return false, f.Close()
}

// full says whether the page takes no more, which is asked when there is more.
func (w *walk) full() bool {
	if len(w.page.Objects)+len(w.page.Prefixes) < w.limit {
		return false
	}
	w.page.Next = w.last
	return true
}

// names are the files and directories in a directory in the order of keys: a directory's name ends with a slash.
//
// It is read twice. On some file systems (Btrfs) a file that is replaced during the first reading gets a new place behind
// what that reading looks at; a later reading begins behind it.
func (s *Store) names(dir string) ([]string, error) {
	var names []string
	for range 2 {
		entries, err := os.ReadDir(filepath.Join(s.dir, filepath.FromSlash(dir)))
		if isAbsent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			switch {
			case e.IsDir() && (dir != "" || e.Name() != reservedDir):
				names = append(names, e.Name()+"/")
			case e.Type().IsRegular():
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
