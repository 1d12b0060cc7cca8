package kill

import (
	"bytes"
	"os"
	"strings"
)

// lastWordsBytes is how much of a log a violation shows.
const lastWordsBytes = 600

// lastWords is what a log says about the end, in one line: from the start of a panic, or else the end of the log.
func lastWords(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if at := bytes.LastIndex(append([]byte("\n"), text...), []byte("\npanic: ")); at >= 0 {
		text = text[at:min(at+lastWordsBytes, len(text))]
	}
	text = text[max(0, len(text)-lastWordsBytes):]
	return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", " | ")
}
