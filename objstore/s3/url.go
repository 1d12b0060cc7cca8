package s3

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"ingest-agent/objstore"
)

// Location is a bucket URL, taken apart.
type Location struct {
	Bucket       string
	Prefix       string // without slashes around it; "": the whole bucket
	Region       string // "": by the SDK's configuration
	Endpoint     string // "": AWS, or by the SDK's configuration
	PathStyle    bool
	SSE          types.ServerSideEncryption // "": as the bucket's default says
	SSEKMSKey    string
	StorageClass types.StorageClass // "": the store's default
	checksum     checksumKind
}

var (
	bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$`)
	word       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:_-]{0,62}$`)
	kmsKey     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:/_.-]*$`)
)

// parameters are what may stand behind the ? of a URL.
func parameters() map[string]func(l *Location, value string) error {
	return map[string]func(l *Location, value string) error{
		"region":        func(l *Location, v string) error { return set(&l.Region, v, word) },
		"endpoint":      func(l *Location, v string) (err error) { l.Endpoint, err = parseEndpoint(v); return err },
		"path_style":    func(l *Location, v string) (err error) { l.PathStyle, err = parseBool(v); return err },
		"sse":           setSSE,
		"sse_kms_key":   func(l *Location, v string) error { return set(&l.SSEKMSKey, v, kmsKey) },
		"storage_class": func(l *Location, v string) error { return set(&l.StorageClass, v, word) },
		"checksum":      func(l *Location, v string) (err error) { l.checksum, err = parseChecksum(v); return err },
	}
}

// ParseURL takes apart s3://bucket/prefix?name=value&…, with these names, all optional:
//
//	region         of the bucket
//	endpoint       http(s)://host[:port] of a store other than AWS
//	path_style     true: http://host/bucket/key, false (default): http://bucket.host/key
//	sse            AES256, aws:kms or aws:kms:dsse: encryption that is asked for with every object
//	sse_kms_key    the key of aws:kms
//	storage_class  such as STANDARD_IA
//	checksum       none, crc32c or md5: the header sent with every body; default: crc32c on AWS, elsewhere what the store
//	               asks for once it refuses a body without
//
// Credentials do not belong into a URL; one that has them is refused. Errors are objstore.ErrInvalid and do not repeat what
// could be a secret.
func ParseURL(text string) (Location, error) {
	u, err := url.Parse(text)
	if err != nil { // url.Parse's error would show all of it
		return Location{}, fmt.Errorf("%w: bucket URL is not a URL", objstore.ErrInvalid)
	}
	switch {
	case u.Scheme != "s3":
		return Location{}, fmt.Errorf("%w: bucket URL must start with s3://", objstore.ErrInvalid)
	case u.User != nil:
		return Location{}, fmt.Errorf("%w: bucket URL has credentials in it: give them by environment, profile or role", objstore.ErrInvalid)
	case u.Fragment != "" || u.Opaque != "":
		return Location{}, fmt.Errorf("%w: bucket URL is not s3://bucket/prefix?name=value", objstore.ErrInvalid)
	case !bucketName.MatchString(u.Host):
		return Location{}, fmt.Errorf("%w: bucket URL has no valid bucket name behind s3://", objstore.ErrInvalid)
	}
	l := Location{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")}
	if l.Prefix != "" {
		if err := objstore.CheckKey(l.Prefix); err != nil {
			return Location{}, fmt.Errorf("bucket URL's prefix: %w", err)
		}
	}
	if err := l.setParameters(u.RawQuery); err != nil {
		return Location{}, fmt.Errorf("%w: bucket URL: %w", objstore.ErrInvalid, err)
	}
	return l, nil
}

func (l *Location) setParameters(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("what is behind the ? is not name=value&…")
	}
	known := parameters()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		setter, ok := known[name]
		if !ok {
			return fmt.Errorf("unknown parameter %q, allowed are %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if len(values[name]) != 1 {
			return fmt.Errorf("parameter %s is given more than once", name)
		}
		if err := setter(l, values[name][0]); err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	if l.SSEKMSKey != "" && !strings.HasPrefix(string(l.SSE), "aws:kms") {
		return fmt.Errorf("sse_kms_key goes with sse=aws:kms or aws:kms:dsse")
	}
	return nil
}

func set[T ~string](to *T, value string, form *regexp.Regexp) error {
	if !form.MatchString(value) {
		return fmt.Errorf("not of the form %s", form)
	}
	*to = T(value)
	return nil
}

func setSSE(l *Location, value string) error {
	l.SSE = types.ServerSideEncryption(value)
	switch l.SSE {
	case types.ServerSideEncryptionAes256, types.ServerSideEncryptionAwsKms, types.ServerSideEncryptionAwsKmsDsse:
		return nil
	default:
		return fmt.Errorf("allowed are AES256, aws:kms, aws:kms:dsse")
	}
}

func parseBool(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("allowed are true, false")
	}
	return b, nil
}

func parseEndpoint(value string) (string, error) {
	u, err := url.Parse(value)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("must be http://host:port or https://host:port, without credentials")
	}
	return strings.TrimSuffix(value, "/"), nil
}
