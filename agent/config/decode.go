package config

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds the values that are read from one file. It is far beyond any real file; YAML aliases can make a small
// file mean a huge one.
const maxNodes = 100_000

// loader fills a Config from a tree of YAML nodes and from overrides, and gathers all problems on the way.
type loader struct {
	file      string
	env       Env
	overrides map[string]Override // by dotted key
	replaced  map[string]string   // destinations given by an override: name to its origin; the file's entry does not count
	problems  Problems
	bad       map[string]bool  // keys with a problem; one key is reported once
	places    map[string]place // where each key was written
	hidden    map[string]bool  // keys whose value must not be shown
	nodes     int
}

// place is where a key was written.
type place struct {
	where string
	line  int
}

// maxProblems bounds how many problems are reported at once.
const maxProblems = 100

// fail reports a problem of key, unless one of it or of a section around it is known already.
func (l *loader) fail(key, what, allowed string) {
	for around := key; ; around = parent(around) {
		if l.bad[around] {
			return
		}
		if around == "" {
			break
		}
	}
	l.bad[key] = true
	if len(l.problems) >= maxProblems {
		return
	}
	at := l.find(key)
	l.problems = append(l.problems, Problem{Where: at.where, Line: at.line, Key: key, What: what, Allowed: allowed})
}

// find is the place of key, or of the nearest section around it that was written.
func (l *loader) find(key string) place {
	for ; key != ""; key = parent(key) {
		if at, found := l.places[key]; found {
			return at
		}
	}
	return place{where: l.file}
}

// parent is the dotted key of the section around key; empty for the whole file.
func parent(key string) string { return key[:max(0, strings.LastIndexAny(key, ".["))] }

// note remembers that key was written at a line of the file.
func (l *loader) note(key string, line int) {
	l.places[key] = place{where: l.file + ":" + strconv.Itoa(line), line: line}
}

// section fills the fields of a struct; node may be nil, then all get their defaults.
func (l *loader) section(v reflect.Value, node *yaml.Node, key string) {
	t := v.Type()
	var names []string
	for field := range t.Fields() {
		if name := field.Tag.Get("key"); name != "" {
			names = append(names, name)
		}
	}
	children := l.mapping(node, key, func(path, name string) bool {
		if slices.Contains(names, name) {
			return true
		}
		l.fail(path, "unknown key", allowedNames(name, names))
		return false
	})
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("key"); name != "" {
			l.value(v.Field(i), children[name], join(key, name), t.Field(i).Tag)
		}
	}
}

// mapping returns the values of a mapping by name, for the names that accept takes. A missing or empty section has none.
func (l *loader) mapping(node *yaml.Node, key string, accept func(path, name string) bool) map[string]*yaml.Node {
	node = l.enter(node, key)
	if node == nil || isNull(node) {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		l.fail(key, "is "+kindOf(node), "want a section with keys")
		return nil
	}
	children := make(map[string]*yaml.Node)
	lines := make(map[string]int)
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, child := node.Content[i], node.Content[i+1]
		if name.Kind != yaml.ScalarNode {
			l.fail(key, fmt.Sprintf("line %d has a key that is %s", name.Line, kindOf(name)), "want a plain name")
			continue
		}
		path := join(key, name.Value)
		if line, twice := lines[name.Value]; twice {
			l.note(path, name.Line)
			l.fail(path, fmt.Sprintf("is there twice, first in line %d", line), "keep one")
			continue
		}
		lines[name.Value] = name.Line
		l.note(path, name.Line)
		if accept(path, name.Value) {
			children[name.Value] = child
		}
	}
	return children
}

// enter resolves an alias and counts the node with what stands directly in it. It returns nil for a node that is absent or
// beyond the limit.
func (l *loader) enter(node *yaml.Node, key string) *yaml.Node {
	if node == nil {
		return nil
	}
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if l.nodes += 1 + len(node.Content); l.nodes > maxNodes {
		l.fail("", "the file holds too many values, at the latest in "+key, fmt.Sprintf("want at most %d, counting each use of an alias", maxNodes))
		return nil
	}
	return node
}

// value fills one field, whatever its type.
func (l *loader) value(v reflect.Value, node *yaml.Node, key string, tag reflect.StructTag) {
	_, isPrefix := reflect.TypeAssert[netip.Prefix](v)
	switch {
	case v.Kind() == reflect.Map:
		l.entries(v, node, key, tag)
	case v.Kind() == reflect.Slice:
		l.list(v, node, key, tag)
	case v.Kind() == reflect.Struct && !isPrefix:
		l.section(v, node, key)
	default:
		l.scalar(v, node, key, tag)
	}
}

// entries fills a map with free names.
func (l *loader) entries(v reflect.Value, node *yaml.Node, key string, tag reflect.StructTag) {
	rule := tag.Get("names")
	children := l.mapping(node, key, func(path, name string) bool {
		what, allowed := checkText(rule, name)
		if what != "" {
			l.fail(path, what, allowed)
		}
		return what == ""
	})
	if key == "destinations" {
		for name, origin := range l.replaced {
			if children == nil {
				children = make(map[string]*yaml.Node)
			}
			children[name] = nil
			l.places[join(key, name)] = place{where: origin}
		}
	}
	if len(children) == 0 {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, name := range slices.Sorted(maps.Keys(children)) { // in order, so that problems come in the same order each time
		entry := reflect.New(v.Type().Elem()).Elem()
		l.value(entry, children[name], join(key, name), "")
		v.SetMapIndex(reflect.ValueOf(name), entry)
	}
}

// list fills a slice.
func (l *loader) list(v reflect.Value, node *yaml.Node, key string, tag reflect.StructTag) {
	node = l.enter(node, key)
	if node == nil || isNull(node) {
		return
	}
	if node.Kind != yaml.SequenceNode {
		l.fail(key, "is "+kindOf(node), "want a list")
		return
	}
	for i, child := range node.Content {
		path := fmt.Sprintf("%s[%d]", key, i)
		l.note(path, child.Line)
		item := reflect.New(v.Type().Elem()).Elem()
		l.value(item, child, path, tag)
		v.Set(reflect.Append(v, item))
	}
}

// scalar fills one value: from an override, else from the file, else its default.
func (l *loader) scalar(v reflect.Value, node *yaml.Node, key string, tag reflect.StructTag) {
	byDefault, hasDefault := tag.Lookup("default")
	if hasDefault { // without its rule, which may look at the disk: it counts only where nothing else is given
		parseInto(v, byDefault)
	}
	if o, found := l.overrides[key]; found {
		l.places[key] = place{where: o.Origin}
		l.text(v, o.Value, key, tag, false)
		return
	}
	node = l.enter(node, key)
	switch {
	case node == nil && hasDefault:
		l.text(v, byDefault, key, tag, false)
		return
	case node == nil:
		if tag.Get("need") != "" {
			l.fail(key, "is missing", tag.Get("help"))
		}
		return
	case isNull(node):
		l.fail(key, "has no value", "give one or remove the key")
		return
	case node.Kind != yaml.ScalarNode:
		l.fail(key, "is "+kindOf(node), "want "+formOf(v))
		return
	case node.Style&yaml.TaggedStyle != 0:
		l.fail(key, "has the YAML tag "+show(node.Tag), "want "+formOf(v)+" without a tag")
		return
	}
	text, expanded, err := expand(node.Value, l.env)
	if err != nil {
		l.fail(key, err.Error(), referenceForm)
		return
	}
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if node.Style&quoted != 0 && !expanded && !takesText(v) {
		l.fail(key, "is quoted text", "want "+formOf(v))
		return
	}
	l.text(v, text, key, tag, expanded)
}

// text parses and checks one value. A value that came from the environment is not repeated in a problem.
func (l *loader) text(v reflect.Value, text, key string, tag reflect.StructTag, expanded bool) {
	_, secret := reflect.TypeAssert[Secret](v)
	l.hidden[key] = secret || expanded
	shown := l.show(key, text)
	parsed := reflect.New(v.Type()).Elem()
	if !parseInto(parsed, text) {
		l.fail(key, shown+" is not understood", "want "+formOf(v))
		return
	}
	if text == "" && tag.Get("need") != "" {
		l.fail(key, "is empty", tag.Get("help"))
		return
	}
	if what, allowed := checkRule(tag.Get("rule"), parsed, text); what != "" {
		l.fail(key, strings.ReplaceAll(what, valueMark, shown), allowed)
		return
	}
	v.Set(parsed)
}

// show quotes the value of key for a message, unless it must not be shown.
func (l *loader) show(key, text string) string {
	if l.hidden[key] {
		return "the value"
	}
	return show(text)
}

// parseInto reads text as the type of v.
func parseInto(v reflect.Value, text string) bool {
	var err error
	switch p := v.Addr().Interface().(type) {
	case *Size:
		*p, err = ParseSize(text)
	case *time.Duration:
		*p, err = time.ParseDuration(text)
	case *netip.Prefix:
		*p, err = parseNetwork(text)
	case *int:
		*p, err = strconv.Atoi(text)
	case *float64:
		*p, err = strconv.ParseFloat(text, 64)
	case *bool:
		*p = text == "true"
		return text == "true" || text == "false"
	default:
		v.SetString(text)
		return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
	}
	return err == nil
}

// parseNetwork reads a network in CIDR form, or one address.
func parseNetwork(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.WithZone("").Prefix(address.BitLen())
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

// formOf says what the values of a type look like.
func formOf(v reflect.Value) string {
	switch v.Interface().(type) {
	case Size:
		return sizeForm
	case time.Duration:
		return durationForm
	case netip.Prefix:
		return "an address such as 10.0.0.7 or a network such as 10.0.0.0/8"
	case int:
		return "a whole number"
	case float64:
		return "a number"
	case bool:
		return "true or false"
	}
	return "text in UTF-8 without control characters"
}

// takesText reports whether a value of v's type may be written in quotes.
func takesText(v reflect.Value) bool {
	switch v.Interface().(type) {
	case int, float64, bool:
		return false
	}
	return true
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.Tag == "!!null" && node.Style&yaml.TaggedStyle == 0
}

// kindOf names what a node is, for people.
func kindOf(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a section"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		return "a single value"
	}
	return "an alias"
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}
