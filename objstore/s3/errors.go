package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"ingest-agent/objstore"
)

// maxMessageBytes bounds how much of a store's message goes into an error.
const maxMessageBytes = 300

// call is what was asked for, as far as the meaning of an answer depends on it.
type call struct {
	verb string // such as "put object"
	key  string // or the prefix of a list
	cond objstore.Condition
	gone bool // a 404 says that there is no such object
}

// explain turns an error of the SDK into one of the kinds of objstore, with what the store said as text. It keeps nothing
// of the SDK's error itself: one would see an io.EOF in it, or a context that ended inside.
func (b *bucket) explain(ctx context.Context, c call, err error) error {
	if err == nil {
		return nil
	}
	left := ""
	if leftover, ok := errors.AsType[*leftoverError](err); ok {
		left = "; the parts of its upload " + leftover.uploadID + " may be left"
	}
	if errors.Is(err, objstore.ErrInvalid) || errors.Is(err, objstore.ErrUnknown) { // our own, from below
		return fmt.Errorf("%s %s: %w%s", c.verb, c.key, err, left)
	}
	kind, said := classify(c, err), describe(err)
	if statusOf(err) != 0 { // a store has spoken
		said = b.redact(ctx, said)
	}
	switch {
	case ctx.Err() != nil && errors.Is(kind, objstore.ErrUnknown):
		return fmt.Errorf("%s %s: %w: %w%s", c.verb, c.key, objstore.ErrUnknown, ctx.Err(), left)
	case errors.Is(kind, objstore.ErrClockSkew):
		return fmt.Errorf("%s %s: %w: %w: %s%s", c.verb, c.key, objstore.ErrUnknown, objstore.ErrClockSkew, said, left)
	default:
		return fmt.Errorf("%s %s: %w: %s%s", c.verb, c.key, kind, said, left)
	}
}

// classify finds the kind of an error. The store's code comes before the status: CompleteMultipartUpload may answer 200 and
// then fail. What is not known to be a refusal is ErrUnknown.
func classify(c call, err error) error {
	if answer, ok := errors.AsType[smithy.APIError](err); ok {
		if kind := byCode(c, answer.ErrorCode()); kind != nil {
			return kind
		}
	}
	return byStatus(c, statusOf(err))
}

func byCode(c call, code string) error {
	switch code {
	case "RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture":
		return objstore.ErrClockSkew
	case "PreconditionFailed":
		return objstore.ErrPrecondition
	case "NoSuchKey":
		switch {
		case c.cond.Version() != "": // replaced what was not there
			return objstore.ErrPrecondition
		case c.gone:
			return objstore.ErrNotFound
		}
		return objstore.ErrUnknown
	case "NoSuchBucket", "ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "AuthorizationHeaderMalformed":
		return objstore.ErrDenied
	case "NotImplemented":
		return objstore.ErrUnsupported
	case "RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "InternalError", "SlowDown", // 400, some
		"NoSuchUpload", // it ended or was swept: perhaps by an earlier try
		"ConditionalRequestConflict", "OperationAborted":
		return objstore.ErrUnknown
	}
	return nil
}

func byStatus(c call, status int) error {
	switch status {
	case http.StatusNotModified:
		return objstore.ErrNotModified
	case http.StatusPreconditionFailed:
		return objstore.ErrPrecondition
	case http.StatusNotFound:
		// Without the store's own code a 404 may be that of a proxy, which knows nothing of objects. A condition on a version
		// has failed all the same.
		if c.cond.Version() != "" {
			return objstore.ErrPrecondition
		}
		return objstore.ErrUnknown
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMovedPermanently, http.StatusFound, http.StatusPermanentRedirect:
		return objstore.ErrDenied
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return objstore.ErrUnsupported
	case http.StatusConflict, http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusTooEarly, http.StatusTemporaryRedirect:
		return objstore.ErrUnknown
	}
	if status >= http.StatusBadRequest && status < http.StatusInternalServerError {
		return objstore.ErrInvalid
	}
	return objstore.ErrUnknown
}

// statusOf is the HTTP status of the answer; 0 if there was none.
func statusOf(err error) int {
	if answer, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		return answer.HTTPStatusCode()
	}
	return 0
}

// describe says what is known of an error, without URLs: those of an endpoint may be long, and are known.
func describe(err error) string {
	var parts []string
	response, answered := errors.AsType[*awshttp.ResponseError](err)
	if answered {
		parts = append(parts, fmt.Sprintf("HTTP %d", response.HTTPStatusCode()))
		if region := response.HTTPResponse().Header.Get("X-Amz-Bucket-Region"); region != "" {
			parts = append(parts, "the bucket is in region "+region)
		}
	}
	if answer, ok := errors.AsType[smithy.APIError](err); ok {
		parts = append(parts, answer.ErrorCode(), answer.ErrorMessage())
	} else {
		parts = append(parts, transportText(err))
	}
	if answered && response.ServiceRequestID() != "" {
		parts = append(parts, "request "+response.ServiceRequestID())
	}
	return strings.Join(parts, ": ")
}

// transportText is the innermost of what the SDK wraps around an error of the connection.
func transportText(err error) string {
	if inURL, ok := errors.AsType[*url.Error](err); ok {
		return inURL.Err.Error()
	}
	if errors.Is(err, errTooSlow) {
		return errTooSlow.Error()
	}
	return err.Error()
}

// redact removes the credentials, which a store may echo, and what is not text.
func (b *bucket) redact(ctx context.Context, text string) string {
	c, err := b.credentials.Retrieve(ctx) // as the request just did: from the SDK's cache
	if err != nil {
		return "what the store said is not shown, since the credentials to remove from it are gone"
	}
	for _, secret := range []string{c.SecretAccessKey, c.SessionToken, c.AccessKeyID} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxMessageBytes {
		text = strings.ToValidUTF8(text[:maxMessageBytes], "") + "…"
	}
	return text
}
