package otlpgen

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
)

// content draws what telemetry is about. All of it comes from its source of numbers, so that a seed says it all.
type content struct{ rng *rand.Rand }

// Records are spread over resources and scopes in these portions, as a node's agents batch them.
const (
	recordsPerResource = 40
	recordsPerScope    = 20
)

// start is the time of the first record. It is fixed, since the clock would make runs differ.
var start = time.Date(2025, 3, 3, 9, 0, 0, 0, time.UTC)

// service is a kind of program in the fleet.
type service struct{ name, language, scope string }

var services = []service{
	{"checkout", "go", "net/http"},
	{"payments", "java", "io.opentelemetry.spring-webmvc-6.0"},
	{"cart", "dotnet", "Microsoft.AspNetCore"},
	{"catalogue", "python", "opentelemetry.instrumentation.flask"},
	{"ad-server", "java", "io.opentelemetry.netty-4.1"},
	{"recommendation", "python", "opentelemetry.instrumentation.grpc"},
	{"edge-proxy", "cpp", "envoy"},
	{"mailer", "nodejs", "@opentelemetry/instrumentation-http"},
}

var (
	methods  = []string{"GET", "GET", "GET", "POST", "PUT", "DELETE"}
	statuses = []int64{200, 200, 200, 200, 201, 204, 302, 400, 404, 429, 500, 503}
	routes   = []string{"/api/cart/{id}", "/api/orders", "/api/products/{sku}", "/healthz", "/api/search", "/api/users/{id}/addresses"}
	regions  = []string{"eu-central-1", "eu-west-1", "us-east-1"}
	words    = strings.Fields("request order payment customer cache miss retry upstream timeout accepted connection pool " +
		"query index shard replica token expired session basket größe 価格 limit reached slow flush commit partition lag")
)

func pick[T any](c *content, from []T) T { return from[c.rng.IntN(len(from))] }

// chance is true in one of n cases.
func (c *content) chance(n int) bool { return c.rng.IntN(n) == 0 }

func (c *content) sentence(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(pick(c, words))
	}
	return b.String()
}

func (c *content) traceID() (id pcommon.TraceID) {
	for i := range id {
		id[i] = byte(c.rng.Uint32())
	}
	id[0] |= 1 // all zeros means none
	return id
}

func (c *content) spanID() (id pcommon.SpanID) {
	for i := range id {
		id[i] = byte(c.rng.Uint32())
	}
	id[0] |= 1
	return id
}

// time is that of record i: records come every few milliseconds.
func (c *content) time(i int) pcommon.Timestamp {
	return pcommon.NewTimestampFromTime(start.Add(time.Duration(i)*3*time.Millisecond + time.Duration(c.rng.IntN(2_000_000))))
}

// resource fills in a program on a node: attributes of few values (region), of many (pod) and of one for each (instance).
func (c *content) resource(r pcommon.Resource) service {
	s := pick(c, services)
	a := r.Attributes()
	a.PutStr("service.name", s.name)
	a.PutStr("service.namespace", "shop")
	a.PutStr("service.version", fmt.Sprintf("%d.%d.%d", 1+c.rng.IntN(3), c.rng.IntN(20), c.rng.IntN(10)))
	a.PutStr("service.instance.id", fmt.Sprintf("%08x-%04x", c.rng.Uint32(), c.rng.IntN(1<<16)))
	a.PutStr("telemetry.sdk.language", s.language)
	a.PutStr("cloud.region", pick(c, regions))
	a.PutStr("k8s.namespace.name", "shop-prod")
	a.PutStr("k8s.pod.name", fmt.Sprintf("%s-%x-%x", s.name, c.rng.IntN(1<<20), c.rng.IntN(1<<16)))
	a.PutStr("k8s.node.name", fmt.Sprintf("node-%03d", c.rng.IntN(400)))
	a.PutInt("process.pid", int64(1+c.rng.IntN(30000)))
	if c.chance(3) {
		a.PutEmptySlice("process.command_args").AppendEmpty().SetStr("--config=/etc/" + s.name + ".yaml")
	}
	return s
}

// request fills in what one HTTP request leaves in a record, up to a value that occurs once only (the full path).
func (c *content) request(a pcommon.Map) (status int64) {
	status = pick(c, statuses)
	route := pick(c, routes)
	a.PutStr("http.request.method", pick(c, methods))
	a.PutStr("http.route", route)
	a.PutInt("http.response.status_code", status)
	a.PutStr("url.path", strings.ReplaceAll(route, "{", fmt.Sprintf("%x{", c.rng.Uint64())))
	a.PutStr("client.address", fmt.Sprintf("10.%d.%d.%d", c.rng.IntN(256), c.rng.IntN(256), c.rng.IntN(256)))
	a.PutBool("app.cache_hit", c.chance(2))
	a.PutDouble("app.basket_value", float64(c.rng.IntN(100_000))/100)
	return status
}

// stackTrace is as long as those of real programs: some are under a kilobyte, some are several.
func (c *content) stackTrace() string {
	var b strings.Builder
	fmt.Fprintf(&b, "java.lang.IllegalStateException: %s\n", c.sentence(6))
	for range 5 + c.rng.IntN(40) {
		fmt.Fprintf(&b, "\tat com.shop.%s.%sService.handle(%sService.java:%d)\n",
			pick(c, words), pick(c, words), pick(c, words), 1+c.rng.IntN(900))
	}
	if c.chance(2) {
		fmt.Fprintf(&b, "Caused by: java.net.SocketTimeoutException: Read timed out\n\t... %d more\n", c.rng.IntN(60))
	}
	return b.String()
}
