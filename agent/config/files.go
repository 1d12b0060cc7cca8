package config

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"ingest-agent/agent/reload"
	"ingest-agent/segment"
)

// reason is the cause of a file error without the path, which may come from the environment.
func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}

// checkDir refuses what exists and is no directory. What does not exist is made by the part that owns it.
func checkDir(path string) (what, allowed string) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", ""
	case err != nil:
		return "cannot be used: " + reason(err), "want a directory"
	case !info.IsDir():
		return "is no directory", "want a directory, or a name that is free"
	}
	return "", ""
}

func checkFile(path string) (what, allowed string) {
	if _, err := reload.ReadFile(path); err != nil {
		return "cannot be read: " + reason(err), "want a file that the agent may read"
	}
	return "", ""
}

func checkCAFile(path string) (what, allowed string) {
	data, err := reload.ReadFile(path)
	if err != nil {
		return "cannot be read: " + reason(err), "want a file that the agent may read"
	}
	if !x509.NewCertPool().AppendCertsFromPEM(data) {
		return "holds no certificate", "want certificates in PEM"
	}
	return "", ""
}

func checkTokenFile(path string) (what, allowed string) {
	data, err := reload.ReadFile(path)
	if err != nil {
		return "cannot be read: " + reason(err), "want a file that the agent may read"
	}
	if _, err := ParseToken(data); err != nil {
		return err.Error(), "want one line of printable ASCII without spaces"
	}
	return "", ""
}

func checkTokensFile(path string) (what, allowed string) {
	data, err := reload.ReadFile(path)
	if err != nil {
		return "cannot be read: " + reason(err), "want a file that the agent may read"
	}
	if _, err := ParseTokens(data); err != nil {
		return err.Error(), "want lines such as TOKEN: tenant"
	}
	return "", ""
}

// isToken reports whether text can be a bearer token in a header.
func isToken(text string) bool { return nodeName.MatchString(text) }

// ParseToken reads the one token of admin.auth_token_file. Its error does not show what is there.
func ParseToken(data []byte) (string, error) {
	token := strings.TrimSpace(string(data))
	if !isToken(token) {
		return "", errors.New("holds no token")
	}
	return token, nil
}

// ParseTokens reads the text of auth.tokens_file: a YAML map of bearer token to tenant. Its errors name lines and never a
// token.
func ParseTokens(data []byte) (map[string]string, error) {
	var root, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&root); err != nil || len(root.Content) != 1 {
		return nil, errors.New("read tokens: not one YAML map")
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("read tokens: more than one YAML document")
	}
	top := root.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, errors.New("read tokens: not one YAML map")
	}
	tokens := make(map[string]string, len(top.Content)/2)
	for i := 0; i+1 < len(top.Content); i += 2 {
		token, tenant := top.Content[i], top.Content[i+1]
		_, twice := tokens[token.Value]
		switch {
		case token.Kind != yaml.ScalarNode || !isToken(token.Value):
			return nil, fmt.Errorf("read tokens: line %d: the token is not printable ASCII without spaces", token.Line)
		case twice:
			return nil, fmt.Errorf("read tokens: line %d: a token is there twice", token.Line)
		case tenant.Kind != yaml.ScalarNode || isNull(tenant) || !ValidTenant(tenant.Value):
			return nil, fmt.Errorf("read tokens: line %d: the tenant is no name of 1 to %d bytes", tenant.Line, segment.MaxTenantBytes)
		}
		tokens[token.Value] = tenant.Value
	}
	return tokens, nil
}

// checkPair checks that certificate and key are there together, parse and belong together. key is the dotted path of tls.
func (l *loader) checkPair(key, certFile, keyFile string) {
	certKey, keyKey := join(key, "cert_file"), join(key, "key_file")
	switch {
	case l.bad[certKey] || l.bad[keyKey] || certFile == "" && keyFile == "":
	case keyFile == "":
		l.fail(certKey, "is set without key_file", "set both or none")
	case certFile == "":
		l.fail(keyKey, "is set without cert_file", "set both or none")
	default:
		if _, err := tls.LoadX509KeyPair(certFile, keyFile); err != nil {
			l.fail(certKey, "cannot be used with key_file: "+reason(err), "want a certificate and its key, both in PEM")
		}
	}
}
