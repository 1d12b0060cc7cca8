package config

import (
	"fmt"
	"regexp"
	"strings"
)

// Env looks up an environment variable, as os.LookupEnv does.
type Env func(name string) (value string, found bool)

// envReference is what may stand between ${ and }, as in the OpenTelemetry Collector.
var envReference = regexp.MustCompile(`^env:([a-zA-Z_][a-zA-Z0-9_]*)(?::-(.*))?$`)

// expand replaces ${env:NAME} and ${env:NAME:-default} in a scalar, and $$ by $. A $ before anything else stays. The default
// is for a variable that is not set; one that is set but empty is taken only where a default, even an empty one, says that
// it is not needed. What comes from the environment is not looked at again. expanded tells whether there was a reference, so that the value is not shown.
func expand(text string, env Env) (out string, expanded bool, err error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String(), expanded, nil
		}
		switch {
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "{"):
			reference, rest, closed := strings.Cut(after[1:], "}")
			match := envReference.FindStringSubmatch(reference)
			if !closed || match == nil || strings.Contains(match[2], "${") {
				return "", true, fmt.Errorf("has a reference that is not understood")
			}
			value, found := env(match[1])
			switch hasDefault := strings.Contains(reference, ":-"); {
			case !found && hasDefault:
				value = strings.ReplaceAll(match[2], "$$", "$")
			case !found:
				return "", true, fmt.Errorf("environment variable %s is not set", match[1])
			case value == "" && !hasDefault: // an empty token or file name would switch protection off in silence
				return "", true, fmt.Errorf("environment variable %s is empty", match[1])
			}
			b.WriteString(value)
			text, expanded = rest, true
		default:
			b.WriteByte('$')
			text = after
		}
	}
}

// referenceForm says what a reference looks like.
const referenceForm = "want ${env:NAME} or ${env:NAME:-default}, and $$ for a plain $"
