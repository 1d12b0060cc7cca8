// Package config is the whole configuration of the agent as one plain value.
//
// It guarantees that a Config which Load returned is complete and checked: every key has a value in its range, every name
// that refers to another section exists there, and every file that is only read (certificates, tokens) exists and parses.
// So the agent can load it before it opens a file for writing, and a bad configuration never touches data. All mistakes of
// a file are reported at once, each with file, line, key and what is allowed.
//
// It assumes that relative paths are meant from the working directory. It persists nothing and logs nothing. The tags of
// the structs below are the only place for keys, defaults, limits and help: the loader, the checks and the listing of
// defaults all read them.
package config

import (
	"net/netip"
	"time"
)

// Tags: key is the name in the file; default is its value as one would write it there (none: the zero value); need:"yes"
// marks a key without default that must be written; rule limits the value, and names the keys of a map (rules.go); help is
// one line for people.

// Config is the configuration of an agent. Sections are plain values: a part is given its own section and no more, so that
// a section can be replaced while the agent runs (Live).
type Config struct {
	DataDir      string                 `key:"data_dir" default:"./data" rule:"dir" help:"directory of lanes, cursors and dead letters"`
	Node         string                 `key:"node" rule:"node" help:"name of this node in the bucket and in logs; empty: the kernel's host name"`
	Receivers    Receivers              `key:"receivers" help:"where OTLP comes in"`
	Admin        Admin                  `key:"admin" help:"health, metrics, state and the page for people"`
	Auth         Auth                   `key:"auth" help:"who may send; nothing set: everybody, as tenant \"default\""`
	WAL          WAL                    `key:"wal" help:"the local write-ahead lanes"`
	Destinations map[string]Destination `key:"destinations" names:"name" help:"where data goes, by name; what no route matches goes to \"default\""`
	Routes       []Route                `key:"routes" help:"first match decides; no match: destination \"default\""`
	Tenants      map[string]Tenant      `key:"tenants" names:"tenant" help:"limits by tenant name"`
	Bucket       Bucket                 `key:"bucket" help:"shared storage that outlives the node"`
	Shipper      Shipper                `key:"shipper" help:"copies the undelivered tail to a bucket outside data_dir"`
	Archive      Archive                `key:"archive" help:"keeps delivered segments in the bucket"`
	Recovery     Recovery               `key:"recovery" help:"finishes the work of nodes that are gone"`
	Jobs         Jobs                   `key:"jobs" help:"bulk export and submit"`
	DeadLetter   DeadLetter             `key:"dead_letter" help:"what a destination refused for good"`
	Shutdown     Shutdown               `key:"shutdown" help:"what happens after SIGTERM"`
	Log          Log                    `key:"log" help:"the agent's own log, on stderr"`

	set map[string]bool // dotted keys that were written in the file or overridden; see IsSet
}

// Receivers is where OTLP comes in.
type Receivers struct {
	GRPC GRPCReceiver `key:"grpc" help:"OTLP/gRPC"`
	HTTP HTTPReceiver `key:"http" help:"OTLP/HTTP, protobuf and JSON"`
}

// GRPCReceiver is the OTLP/gRPC listener.
type GRPCReceiver struct {
	Endpoint            string    `key:"endpoint" default:"127.0.0.1:4317" rule:"listen" help:"host:port to listen on"`
	MaxRequestSizeBytes Size      `key:"max_request_size" default:"16MiB" rule:"1KiB..64MiB" help:"largest request, inflated"`
	TLS                 ServerTLS `key:"tls" help:"TLS is on when cert_file and key_file are set"`
}

// HTTPReceiver is the OTLP/HTTP listener.
type HTTPReceiver struct {
	Endpoint            string        `key:"endpoint" default:"127.0.0.1:4318" rule:"listen" help:"host:port to listen on"`
	MaxRequestSizeBytes Size          `key:"max_request_size" default:"16MiB" rule:"1KiB..64MiB" help:"largest request, inflated"`
	ReadTimeout         time.Duration `key:"read_timeout" default:"30s" rule:"100ms..1h" help:"time that a client has to send a whole request"`
	TLS                 ServerTLS     `key:"tls" help:"TLS is on when cert_file and key_file are set"`
}

// Admin is the listener for operators.
type Admin struct {
	Endpoint      string    `key:"endpoint" default:"127.0.0.1:8888" rule:"listen" help:"host:port to listen on"`
	AuthTokenFile string    `key:"auth_token_file" rule:"token_file" help:"file with the bearer token that callers need (not for /livez and /readyz)"`
	TLS           ServerTLS `key:"tls" help:"TLS is on when cert_file and key_file are set"`
}

// ServerTLS is TLS of a listener; off when CertFile is empty.
type ServerTLS struct {
	CertFile       string        `key:"cert_file" rule:"file" help:"certificate chain, PEM"`
	KeyFile        string        `key:"key_file" rule:"file" help:"its private key, PEM"`
	ClientCAFile   string        `key:"client_ca_file" rule:"ca_file" help:"clients must show a certificate signed by one of these"`
	ReloadInterval time.Duration `key:"reload_interval" default:"0" rule:"0..8760h" help:"how often the files are read again; 0: never"`
}

// Enabled reports whether the listener speaks TLS.
func (t ServerTLS) Enabled() bool { return t.CertFile != "" }

// Auth says who may send and as which tenant.
type Auth struct {
	TokensFile     string         `key:"tokens_file" rule:"tokens_file" help:"YAML map of bearer token to tenant; read again when it changes"`
	TenantHeader   string         `key:"tenant_header" default:"X-Scope-OrgID" rule:"header_name" help:"header that names the tenant, believed only from trusted_proxies"`
	TrustedProxies []netip.Prefix `key:"trusted_proxies" help:"addresses or networks (CIDR) whose tenant_header is believed"`
}

// WAL is the write-ahead lanes and the promise behind an answer.
type WAL struct {
	Ack              Ack            `key:"ack" default:"disk" rule:"disk|bucket|os" help:"a success answer means: disk synced, also in the bucket, or in the page cache"`
	Shards           int            `key:"shards" default:"2" rule:"1..64" help:"lanes per destination"`
	SegmentSizeBytes Size           `key:"segment_size" default:"8MiB" rule:"4KiB..1GiB" help:"a segment is sealed at this size"`
	SegmentAge       time.Duration  `key:"segment_age" default:"30s" rule:"100ms..24h" help:"... or at this age"`
	MaxBytes         Size           `key:"max_bytes" default:"8GiB" rule:"64KiB.." help:"disk space for all lanes together"`
	MinFreeBytes     Size           `key:"min_free_bytes" default:"512MiB" rule:"0.." help:"free space of the volume that is never used"`
	OnFull           OnFull         `key:"on_full" default:"refuse" rule:"refuse|drop_oldest" help:"without space: refuse with a delay, or drop the oldest and count it as lost"`
	TenantShare      float64        `key:"tenant_share" default:"0.5" rule:"fraction" help:"share of max_bytes for one tenant while more than one has pending data"`
	FullWait         time.Duration  `key:"full_wait" default:"1s" rule:"0..1m" help:"how long a request may wait for space before it is refused"`
	SyncInterval     time.Duration  `key:"sync_interval" default:"100ms" rule:"1ms..1m" help:"time between syncs with ack: os"`
	Compression      WALCompression `key:"compression" default:"none" rule:"none|zstd" help:"how stored bodies are compressed"`
}

// Ack is the promise behind a success answer.
type Ack string

// What a success answer means. AckDisk: frame and directory entries are synced on the local disk. AckBucket: also in the
// bucket and named by the register. AckOS: in the page cache, synced within WAL.SyncInterval.
const (
	AckDisk   Ack = "disk"
	AckBucket Ack = "bucket"
	AckOS     Ack = "os"
)

// OnFull is what happens to a request that does not fit.
type OnFull string

// What happens to a request that does not fit.
const (
	OnFullRefuse     OnFull = "refuse"
	OnFullDropOldest OnFull = "drop_oldest"
)

// WALCompression is the codec of stored bodies.
type WALCompression string

// Codecs of stored bodies.
const (
	WALNone WALCompression = "none"
	WALZstd WALCompression = "zstd"
)

// Destination is one place where data goes.
type Destination struct {
	Type                DestinationType   `key:"type" need:"yes" rule:"otlp_http|otlp_grpc|file" help:"how it is spoken to"`
	Endpoint            string            `key:"endpoint" need:"yes" help:"otlp_http: URL, /v1/<signal> is appended; otlp_grpc: host:port; file: directory"`
	Compression         Compression       `key:"compression" default:"gzip" rule:"none|gzip|zstd" help:"coding of OTLP requests"`
	Headers             map[string]Secret `key:"headers" names:"header" help:"sent with each request; values are never shown"`
	Timeout             time.Duration     `key:"timeout" default:"10s" rule:"1ms..1h" help:"of one attempt"`
	InFlight            int               `key:"in_flight" default:"4" rule:"1..256" help:"requests at once per lane"`
	MaxRequestSizeBytes Size              `key:"max_request_size" default:"4MiB" rule:"1KiB..64MiB" help:"requests are merged up to this size and split above it"`
	Retry               Retry             `key:"retry" help:"when an attempt fails"`
	MaxAge              time.Duration     `key:"max_age" default:"0" rule:"0..87600h" help:"older data is dropped and counted as lost; 0: never"`
	TLS                 ClientTLS         `key:"tls" help:"otlp_grpc: on unless insecure; otlp_http: on with https"`
	Ordered             bool              `key:"ordered" default:"false" help:"true: one request at once per lane, so that a resource's records arrive in order"`
	FrameIDs            bool              `key:"frame_ids" default:"true" help:"send header ingest-agent-frames, so that duplicates can be dropped"`
	ParkAfter           time.Duration     `key:"park_after" default:"30s" rule:"0..87600h" help:"a tenant's signal that fails so long while others succeed moves to its own lane; 0: never"`
}

// DestinationType is how a destination is spoken to.
type DestinationType string

// Types of destinations.
const (
	OTLPHTTP DestinationType = "otlp_http"
	OTLPGRPC DestinationType = "otlp_grpc"
	File     DestinationType = "file"
)

// Compression is the coding of OTLP requests that are sent.
type Compression string

// Codings of OTLP requests.
const (
	CompressionNone Compression = "none"
	CompressionGzip Compression = "gzip"
	CompressionZstd Compression = "zstd"
)

// Retry is when a failed attempt is repeated.
type Retry struct {
	InitialInterval time.Duration `key:"initial_interval" default:"200ms" rule:"1ms..1h" help:"delay after the first failure; doubles, with jitter"`
	MaxInterval     time.Duration `key:"max_interval" default:"30s" rule:"1ms..24h" help:"largest delay"`
	RetryCodes      []int         `key:"retry_codes" rule:"1..599" help:"more HTTP status or gRPC codes to retry than OTLP says"`
}

// ClientTLS is TLS towards a destination.
type ClientTLS struct {
	Insecure           bool          `key:"insecure" default:"false" help:"otlp_grpc: no TLS"`
	InsecureSkipVerify bool          `key:"insecure_skip_verify" default:"false" help:"do not check the server's certificate"`
	CAFile             string        `key:"ca_file" rule:"ca_file" help:"who may sign the server's certificate, PEM; empty: the system's list"`
	CertFile           string        `key:"cert_file" rule:"file" help:"own certificate chain, PEM"`
	KeyFile            string        `key:"key_file" rule:"file" help:"its private key, PEM"`
	ServerNameOverride string        `key:"server_name_override" help:"name to expect in the server's certificate"`
	ReloadInterval     time.Duration `key:"reload_interval" default:"0" rule:"0..8760h" help:"how often the files are read again; 0: never"`
}

// Route sends a tenant to a destination.
type Route struct {
	Tenant      string `key:"tenant" need:"yes" rule:"tenant" help:"name of the tenant"`
	Destination string `key:"destination" need:"yes" help:"name of the destination"`
}

// Tenant is what one tenant may use.
type Tenant struct {
	BytesPerSecond Size    `key:"bytes_per_second" default:"0" rule:"0.." help:"accepted per second; 0: no limit"`
	Share          float64 `key:"share" default:"0" rule:"fraction_or_0" help:"of wal.max_bytes; 0: wal.tenant_share"`
	Destination    string  `key:"destination" help:"name of the destination for all of it; empty: as routes say"`
}

// Bucket is the shared storage.
type Bucket struct {
	URL string `key:"url" rule:"bucket" help:"file:DIR or s3://BUCKET/PREFIX?region=R&endpoint=E&path_style=true; not set: <data_dir>/bucket"`
}

// Shipper copies undelivered segments to the bucket.
type Shipper struct {
	After            time.Duration `key:"after" default:"5s" rule:"0..1h" help:"age at which undelivered data is copied"`
	RetryMaxInterval time.Duration `key:"retry_max_interval" default:"30s" rule:"100ms..1h" help:"largest delay between attempts"`
}

// Archive keeps delivered segments.
type Archive struct {
	Enabled   bool          `key:"enabled" default:"false" help:"keep a copy of delivered segments"`
	Retention time.Duration `key:"retention" default:"168h" rule:"1m..876000h" help:"how long"`
}

// Recovery takes over what dead owners left in the bucket.
type Recovery struct {
	Enabled            bool          `key:"enabled" default:"true" help:"take over from dead nodes"`
	ScanInterval       time.Duration `key:"scan_interval" default:"30s" rule:"100ms..24h" help:"time between looks for work"`
	Heartbeat          time.Duration `key:"heartbeat" default:"10s" rule:"10ms..1h" help:"time between signs of life while data is owed; at most a sixth of stale_after"`
	StaleAfter         time.Duration `key:"stale_after" default:"60s" rule:"100ms..24h" help:"silence after which a node counts as dead"`
	Concurrency        int           `key:"concurrency" default:"2" rule:"1..64" help:"owners taken over at once"`
	BootWait           time.Duration `key:"boot_wait" default:"10s" rule:"0..1h" help:"how long a start waits for the bucket before it sends what may have been shipped"`
	TombstoneRetention time.Duration `key:"tombstone_retention" default:"168h" rule:"1m..876000h" help:"how long the record of a finished owner is kept"`
}

// Jobs is bulk export and submit.
type Jobs struct {
	Workers     int           `key:"workers" default:"0" rule:"0..64" help:"jobs run at once on this node"`
	Poll        time.Duration `key:"poll" default:"30s" rule:"100ms..24h" help:"time between looks for new jobs"`
	Lease       time.Duration `key:"lease" default:"60s" rule:"1s..24h" help:"silence after which another worker may take a job"`
	MaxAttempts int           `key:"max_attempts" default:"3" rule:"1..100" help:"a job that failed so often is failed for good"`
	Retention   time.Duration `key:"retention" default:"168h" rule:"1m..876000h" help:"how long ended jobs and their results are kept"`
}

// DeadLetter keeps what was refused for good.
type DeadLetter struct {
	MaxBytes Size `key:"max_bytes" default:"1GiB" rule:"64KiB.." help:"disk space for them"`
}

// Shutdown bounds the stop.
type Shutdown struct {
	Timeout time.Duration `key:"timeout" default:"25s" rule:"100ms..24h" help:"budget of the whole stop; keep it below the supervisor's grace period"`
}

// Log is the agent's own log.
type Log struct {
	Level  LogLevel  `key:"level" default:"info" rule:"debug|info|warn|error" help:"least severe level that is shown"`
	Format LogFormat `key:"format" default:"json" rule:"json|console" help:"one JSON object per line, or text for people"`
}

// LogLevel is the least severe level that is logged: debug, info, warn, error (zap's names).
type LogLevel string

// LogFormat is the encoding of the log: json or console (zap's names).
type LogFormat string

// DefaultDestination is the name of the destination for what no route matches.
const DefaultDestination = "default"

// IsSet reports whether the dotted key, or one below it, was written in the file or overridden.
func (c Config) IsSet(key string) bool { return c.set[key] }
