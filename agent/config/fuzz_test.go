package config

import (
	"errors"
	"strings"
	"testing"
)

// FuzzParse: whatever the file holds, there is either a configuration that is complete or a problem with its place; never
// a panic, and never a value from the environment in a problem.
func FuzzParse(f *testing.F) {
	for _, bad := range badFiles {
		f.Add(bad.text)
	}
	f.Add(fullFile)
	f.Add("a: &a [*a]\n")
	f.Add("destinations: &d {default: &e {type: file, endpoint: '${env:S}', headers: *d, retry: *e}}\n")
	f.Add("\"0\\n0\": 1\n") // an unknown key of two lines
	f.Add("destinations: {\"a\\nb\": {type: nothing, \"c\\u2028d\": 1}}\ntenants: {\"e\\rf\": {g: 1}}\n")
	f.Add("? {a: b}\n: c\n--- \n...\n")
	f.Fuzz(func(t *testing.T, text string) {
		const secret = "hush-7f2a"
		c, err := Parse("f", []byte(text), nil, env(map[string]string{"S": secret}))
		if err == nil {
			if c.DataDir == "" || c.Node == "" || c.Bucket.URL == "" || c.Destinations[DefaultDestination].Endpoint == "" || c.WAL.Shards < 1 {
				t.Errorf("not complete: %+v", c)
			}
			return
		}
		problems, ok := errors.AsType[Problems](err)
		if !ok || len(problems) == 0 || len(problems) > maxProblems {
			t.Fatalf("got %v, want problems", err)
		}
		for _, p := range problems {
			if !strings.HasPrefix(p.Where, "f") || p.What == "" || strings.Contains(p.Error(), "\n") {
				t.Errorf("bad problem %#v", p)
			}
		}
		if strings.Contains(err.Error(), secret) && !strings.Contains(text, secret) {
			t.Errorf("a value from the environment is shown: %v", err)
		}
	})
}
