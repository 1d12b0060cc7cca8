package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"ingest-agent/agent/reload"
)

// Override is a value from a flag or an environment variable, which comes before the file. It is taken as it is: nothing
// in it is expanded.
type Override struct {
	Key    string // dotted key of a single value; or KeyDestination
	Value  string
	Origin string // for messages: --data-dir, INGEST_AGENT_DATA_DIR
}

// KeyDestination is the key of an override whose value ParseDestination reads. It replaces the whole destination of that
// name: headers that the file holds for one endpoint are not sent to another.
const KeyDestination = "destinations"

// Load reads and checks the configuration in file, or the defaults if file is empty. The error is Problems, except where
// the file cannot be read. Nothing is written anywhere.
func Load(file string, overrides []Override, env Env) (Config, error) {
	var text []byte
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return Config{}, fmt.Errorf("read configuration: %w", err)
		}
		defer f.Close()
		if text, err = reload.ReadBounded(f, file); err != nil { // not ReadFile: a pipe is fine here
			return Config{}, fmt.Errorf("read configuration: %w", err)
		}
	}
	return Parse(file, text, overrides, env)
}

// Default is the configuration of an agent without file, flags and environment.
func Default() (Config, error) {
	return Parse("", nil, nil, func(string) (string, bool) { return "", false })
}

// Parse is Load for the text of a file; name stands for the file in problems.
func Parse(name string, text []byte, overrides []Override, env Env) (Config, error) {
	if name == "" {
		name = "defaults"
	}
	l := &loader{
		file: name, env: env,
		overrides: make(map[string]Override), replaced: make(map[string]string),
		bad: make(map[string]bool), places: make(map[string]place), hidden: make(map[string]bool),
	}
	node, problem := parseYAML(name, text)
	if problem != nil {
		return Config{}, Problems{*problem}
	}
	l.takeOverrides(overrides)
	var c Config
	l.section(reflect.ValueOf(&c).Elem(), node, "")
	l.derive(&c)
	l.check(&c)
	if len(l.problems) > 0 {
		return Config{}, l.problems.sorted()
	}
	c.set = make(map[string]bool)
	for key := range l.places {
		for ; !c.set[key]; key = parent(key) {
			c.set[key] = true
		}
	}
	return c, nil
}

// yamlLine finds the line in an error of the YAML library.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// parseYAML returns the top node of the one document in text, or nil if there is none.
func parseYAML(name string, text []byte) (*yaml.Node, *Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var root, second yaml.Node
	err := decoder.Decode(&root)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err == nil {
		err = decoder.Decode(&second)
		if errors.Is(err, io.EOF) && len(root.Content) == 1 {
			return root.Content[0], nil
		}
		if err == nil {
			line := second.Line
			return nil, &Problem{Where: fmt.Sprintf("%s:%d", name, line), Line: line, What: "a second YAML document", Allowed: "want one"}
		}
	}
	match := yamlLine.FindStringSubmatch(err.Error())
	problem := &Problem{Where: name, What: err.Error(), Allowed: "want YAML"}
	if match != nil {
		problem.What = "not YAML: " + strings.TrimPrefix(err.Error(), match[0])
		if problem.Line, err = strconv.Atoi(match[1]); err == nil {
			problem.Where = name + ":" + match[1]
		}
	}
	return nil, problem
}

// takeOverrides makes overrides known to the loader; a later one of the same key wins.
func (l *loader) takeOverrides(overrides []Override) {
	for _, o := range overrides {
		if o.Value == "" { // a flag whose shell variable is not set must not mean the default
			l.places[o.Key] = place{where: o.Origin}
			l.fail(o.Key, "is empty", "give a value or leave it out")
			continue
		}
		if o.Key != KeyDestination {
			l.overrides[o.Key] = o
			continue
		}
		name, d, err := ParseDestination(o.Value)
		if err != nil {
			l.problems = append(l.problems, Problem{Where: o.Origin, Key: KeyDestination, What: err.Error(), Allowed: DestinationForm})
			continue
		}
		l.give(name, d, o.Origin)
	}
}

// give makes a destination known that the file does not hold.
func (l *loader) give(name string, d Destination, origin string) {
	key := join("destinations", name)
	l.replaced[name] = origin
	l.overrides[key+".type"] = Override{Value: string(d.Type), Origin: origin}
	l.overrides[key+".endpoint"] = Override{Value: d.Endpoint, Origin: origin}
}

// derive gives the values that follow from others. It runs before the checks, so that these see what the agent will use.
func (l *loader) derive(c *Config) {
	base := strings.TrimRight(c.DataDir, "/")
	switch {
	case c.Bucket.URL != "" || l.bad["bucket.url"]:
	case l.written("bucket.url"):
		l.fail("bucket.url", "is empty", "give one, or remove the key for a directory in data_dir")
	default:
		c.Bucket.URL = "file:" + base + "/bucket"
	}
	if len(c.Destinations) == 0 && !l.bad["destinations"] {
		var d Destination
		key := join("destinations", DefaultDestination)
		l.overrides[key+".type"] = Override{Value: string(File)}
		l.overrides[key+".endpoint"] = Override{Value: base + "/out"}
		l.section(reflect.ValueOf(&d).Elem(), nil, key)
		delete(l.places, key+".type") // not set by anybody
		delete(l.places, key+".endpoint")
		c.Destinations = map[string]Destination{DefaultDestination: d}
	}
	for name, d := range c.Destinations {
		key := join(join("destinations", name), "in_flight")
		switch {
		case d.Ordered && l.written(key) && d.InFlight != 1:
			l.fail(key, "is more than one with ordered: true", "want in_flight: 1, or ordered: false")
		case d.Ordered:
			d.InFlight = 1
			c.Destinations[name] = d
		}
	}
	if c.Node == "" && !l.bad["node"] {
		var err error
		if c.Node, err = os.Hostname(); err != nil || c.Node == "" {
			l.fail("node", "the kernel has no host name", "set it")
		}
	}
}
