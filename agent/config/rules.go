package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"ingest-agent/segment"
)

// valueMark stands in a problem for the value, which the loader shows or hides.
const valueMark = "{value}"

// checkRule holds a value against the rule of its tag: low..high (either may be missing), one|of|these, or a name of
// checkText. It returns what is wrong, or nothing.
func checkRule(rule string, v reflect.Value, text string) (what, allowed string) {
	low, high, isRange := strings.Cut(rule, "..")
	switch {
	case isRange:
		below := low != "" && v.Int() < bound(v.Type(), low)
		above := high != "" && v.Int() > bound(v.Type(), high)
		if below || above {
			return valueMark + " is out of range", "want " + rangeText(rule)
		}
	case strings.Contains(rule, "|"):
		if names := strings.Split(rule, "|"); !slices.Contains(names, text) {
			return valueMark + " is not known", allowedNames(text, names)
		}
	case rule == "fraction", rule == "fraction_or_0":
		zero := rule == "fraction_or_0" && v.Float() == 0
		if inside := v.Float() > 0 && v.Float() <= 1; !inside && !zero { // NaN is not inside
			return valueMark + " is out of range", "want a fraction above 0 and up to 1"
		}
	case text != "": // no value: the rule has nothing to hold against
		return checkText(rule, text)
	}
	return "", ""
}

// bound reads the limit of a range as a value of type t.
func bound(t reflect.Type, text string) int64 {
	v := reflect.New(t).Elem()
	parseInto(v, text)
	return v.Int()
}

// rangeText says what a range allows.
func rangeText(rule string) string {
	low, high, _ := strings.Cut(rule, "..")
	if high == "" {
		return "at least " + low
	}
	return low + " to " + high
}

// maxNodeBytes bounds the name of a node: a DNS name fits.
const maxNodeBytes = 253

var (
	nodeName   = regexp.MustCompile(`^[!-~]+$`)
	hostName   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?$`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
)

// checkText holds text against a named rule.
func checkText(rule, text string) (what, allowed string) {
	switch rule {
	case "dir":
		return checkDir(text)
	case "file":
		return checkFile(text)
	case "ca_file":
		return checkCAFile(text)
	case "token_file":
		return checkTokenFile(text)
	case "tokens_file":
		return checkTokensFile(text)
	case "bucket":
		return checkBucket(text)
	case "listen":
		if !isHostPort(text, true) {
			return valueMark + " is no address to listen on", "want host:port such as 127.0.0.1:4317, or :4317 for all addresses"
		}
	case "node":
		if len(text) > maxNodeBytes || !nodeName.MatchString(text) {
			return valueMark + " is no name of a node", "want up to 253 printable ASCII characters without spaces"
		}
	case "name":
		if !segment.ValidName(text) {
			return "is no name of a destination", "want [a-z0-9][a-z0-9_-]{0,62}"
		}
	case "tenant":
		if !ValidTenant(text) {
			return "is no name of a tenant", fmt.Sprintf("want 1 to %d bytes of printable UTF-8, no space at an end", segment.MaxTenantBytes)
		}
	case "header_name":
		if !headerName.MatchString(text) {
			return valueMark + " is no name of a header", "want letters, digits and -"
		}
	case "header":
		return checkHeader(text)
	}
	return "", ""
}

// ValidTenant reports whether name can be a tenant's: it becomes a part of keys, a label of metrics, and text for people.
func ValidTenant(name string) bool {
	return name != "" && len(name) <= segment.MaxTenantBytes && utf8.ValidString(name) && strings.TrimSpace(name) == name &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// ownHeaders are set by the agent or by the transport.
var ownHeaders = []string{
	"connection", "content-encoding", "content-length", "content-type", "host", "ingest-agent-frames", "te",
	"transfer-encoding", "upgrade",
}

func checkHeader(name string) (what, allowed string) {
	lower := strings.ToLower(name)
	switch {
	case !headerName.MatchString(name):
		return "is no name of a header", "want letters, digits and -"
	case slices.Contains(ownHeaders, lower) || strings.HasPrefix(lower, "grpc-") || strings.HasSuffix(lower, "-bin"):
		return "is a header that cannot be set", "not allowed: " + strings.Join(ownHeaders, ", ") + ", grpc-*, *-bin"
	}
	return "", ""
}

// isHostPort reports whether text is host:port. To listen the host may be missing and the port 0.
func isHostPort(text string, listen bool) bool {
	host, portText, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || (port == 0 || host == "") && !listen {
		return false
	}
	_, err = netip.ParseAddr(host)
	return host == "" || err == nil || hostName.MatchString(host)
}

// bucketOptions are what the query of an s3 URL may hold.
var bucketOptions = []string{"region", "endpoint", "path_style"}

// checkBucket checks the form of the URL of a bucket. It never repeats the URL, which may hold what should be secret.
func checkBucket(text string) (what, allowed string) {
	const form = "want file:DIR or s3://BUCKET/PREFIX?region=R&endpoint=URL&path_style=true"
	if dir, isFile := strings.CutPrefix(text, "file:"); isFile {
		if dir == "" || strings.HasPrefix(dir, "//") {
			return "names no directory", "want file:DIR, without //"
		}
		return checkDir(dir)
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "s3" || !bucketName.MatchString(u.Host) || u.Fragment != "" {
		return "is no bucket that is known", form
	}
	if u.User != nil {
		return "holds credentials", "give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or another source of the SDK"
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "has a query that is not understood", form
	}
	for name, values := range query {
		if !slices.Contains(bucketOptions, name) {
			return "has an unknown option " + show(name), allowedNames(name, bucketOptions)
		}
		if len(values) != 1 || values[0] == "" {
			return "needs one value for " + name, form
		}
	}
	if style := query.Get("path_style"); style != "" && style != "true" && style != "false" {
		return "has a path_style that is not known", "want true or false"
	}
	if endpoint := query.Get("endpoint"); endpoint != "" && checkURL(endpoint) != "" {
		return "has an endpoint that " + checkURL(endpoint), "want endpoint=https://host:port"
	}
	return "", ""
}

// checkURL says what is wrong with an http or https URL; nothing if it is good.
func checkURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https":
		return "is no http:// or https:// URL"
	case u.Host == "" || u.Opaque != "" || !goodURLHost(u):
		return "names no host, or a bad one"
	case u.User != nil:
		return "holds credentials"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "has a query or fragment"
	}
	return ""
}

func goodURLHost(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":") && isHostPort(net.JoinHostPort(u.Hostname(), "1"), false)
	}
	return isHostPort(net.JoinHostPort(u.Hostname(), u.Port()), false)
}
