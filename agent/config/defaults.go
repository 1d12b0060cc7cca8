package config

import (
	"bufio"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// helpColumn is where help begins behind short values.
const helpColumn = 44

// WriteDefaults writes every key with its default and one line of help. The text is a configuration file that means the
// same as no file. Sections with free names that are empty by default show the keys of an entry as a comment.
func WriteDefaults(w io.Writer) error {
	c, err := Default()
	if err != nil {
		return err
	}
	c.Node = "" // the file must not carry the name of the machine that it was made on
	p := printer{w: bufio.NewWriter(w)}
	p.line("# Every key with its default. Values may hold ${env:NAME} or ${env:NAME:-default}; $$ is a plain $.", "")
	p.section(reflect.ValueOf(c), "", "")
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("write defaults: %w", err)
	}
	return nil
}

// printer writes the listing; the buffered writer keeps the first error.
type printer struct{ w *bufio.Writer }

// section lists the fields of a struct. first comes before the first field instead of indent: the dash of a list.
func (p printer) section(v reflect.Value, first, indent string) {
	lead := first
	if lead == "" {
		lead = indent
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("key")
		if name == "" {
			continue
		}
		if indent == "" {
			_ = p.w.WriteByte('\n') // the writer keeps its first error, which Flush returns
		}
		p.field(v.Field(i), lead+name+":", indent, f.Tag)
		lead = indent
	}
}

func (p printer) field(v reflect.Value, head, indent string, tag reflect.StructTag) {
	help := tag.Get("help")
	switch {
	case v.Kind() == reflect.Struct:
		p.line(head, help)
		p.section(v, "", indent+"  ")
	case v.Kind() == reflect.Map && v.Len() > 0:
		p.line(head, help)
		for _, name := range v.MapKeys() { // only one map is not empty by default, and it has one entry
			p.line(indent+"  "+name.String()+":", "")
			p.section(v.MapIndex(name), "", indent+"    ")
		}
	case v.Kind() == reflect.Map:
		p.line(head+" {}", help)
		p.example(v, "#   NAME:", "#     ", "#     ")
	case v.Kind() == reflect.Slice:
		p.line(head+" []", help)
		p.example(v, "", "#   - ", "#     ")
	default:
		switch rule := tag.Get("rule"); {
		case strings.Contains(rule, "..") && rule != "0..":
			help += " (" + rangeText(rule) + ")"
		case strings.Contains(rule, "|"):
			help += " (" + rule + ")"
		}
		text := scalarText(v)
		if v.IsZero() && tag.Get("need") != "" { // in the example of an entry
			text = "NAME"
		}
		p.line(head+" "+text, help)
	}
}

// example shows the keys of an entry, if the entries are sections.
func (p printer) example(v reflect.Value, title, first, indent string) {
	entry := v.Type().Elem()
	if entry.Kind() != reflect.Struct || entry.Field(0).Tag.Get("key") == "" {
		return
	}
	if title != "" {
		p.line(title, "")
	}
	p.section(reflect.Zero(entry), first, indent)
}

func (p printer) line(text, help string) {
	if help != "" {
		text = fmt.Sprintf("%-*s # %s", helpColumn-1, text, help)
	}
	fmt.Fprintln(p.w, text)
}

// scalarText is a value as one would write it.
func scalarText(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		return FormatDuration(value)
	case Size:
		return value.String()
	case string:
		text, err := yaml.Marshal(value) // quoted where it must be
		if err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return fmt.Sprint(v.Interface())
}
