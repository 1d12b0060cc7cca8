package config

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Problem is one mistake in a configuration.
type Problem struct {
	Where   string // file:line, or the flag or environment variable that it came from
	Line    int    // in the file, from 1; 0: not from a line of it
	Key     string // dotted path; empty where the file is no YAML
	What    string // what is wrong; never shows a secret or a value from the environment
	Allowed string // what is allowed; may be empty
}

// Error is where: key: what is wrong; what is allowed.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Where + ": ")
	if p.Key != "" {
		b.WriteString(showKey(p.Key) + ": ")
	}
	b.WriteString(p.What)
	if p.Allowed != "" {
		b.WriteString("; " + p.Allowed)
	}
	return b.String()
}

// Problems are all mistakes of a configuration, in the order of the file.
type Problems []Problem

// Error is one line per problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].Error()
	}
	return strings.Join(lines, "\n")
}

// maxShownBytes bounds how much of a bad value or key is repeated in a message.
const maxShownBytes = 60

// show quotes text for a message.
func show(text string) string {
	if len(text) > maxShownBytes {
		text = text[:maxShownBytes] + "..."
	}
	return fmt.Sprintf("%q", text)
}

// showKey is a key for a message, as it was written if that leaves the message on its one line.
func showKey(key string) string {
	if len(key) <= 2*maxShownBytes && !strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return key
	}
	return show(key)
}

// allowedNames says which names are allowed, and which of them text may have been meant to be.
func allowedNames(text string, names []string) string {
	allowed := "allowed: " + strings.Join(names, ", ")
	if near := nearest(text, names); near != "" {
		return "did you mean " + near + "? " + allowed
	}
	return allowed
}

// nearest is the name that takes the fewest edits to get from text, if these are few.
func nearest(text string, names []string) string {
	const maxEdits = 3
	best, bestEdits := "", maxEdits+1
	for _, name := range names {
		if len(text) > len(name)+maxEdits { // also bounds the work for a huge text
			continue
		}
		if n := edits(strings.ToLower(text), name); n < bestEdits && n <= len(name)/2 {
			best, bestEdits = name, n
		}
	}
	return best
}

// edits is the Levenshtein distance: insertions, deletions and replacements of bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// sorted puts problems in the order of the file; those of flags and environment variables come first.
func (p Problems) sorted() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int { return a.Line - b.Line })
	return p
}
