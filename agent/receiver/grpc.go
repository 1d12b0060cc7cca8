package receiver

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"ingest-agent/segment"
)

const (
	// maxConcurrentStreams bounds the calls of one connection. Clients wait by themselves beyond it.
	maxConcurrentStreams = 128
	// streamWindowBytes is what a client may send of a call before it is received. It is fixed, since the library's
	// dynamic window grows to 16 MiB for each call that waits.
	streamWindowBytes = 64 << 10
	// connectionWindowBytes is a bound on unread bytes of a connection in flight, not in memory.
	connectionWindowBytes = 1 << 20

	keepaliveTime    = time.Minute      // until a silent client is asked whether it lives
	keepaliveTimeout = 20 * time.Second // for its answer
	// minClientPing is what clients may do themselves; OTLP clients are set to 10 s and more.
	minClientPing = 5 * time.Second
	maxIdle       = 15 * time.Minute // of a connection without calls
)

// grpcService is the name of the service of a signal (opentelemetry-proto, collector/*/v1/*_service.proto).
func grpcService(signal segment.Signal) string {
	return [segment.NumSignals]string{
		"opentelemetry.proto.collector.logs.v1.LogsService",
		"opentelemetry.proto.collector.trace.v1.TraceService",
		"opentelemetry.proto.collector.metrics.v1.MetricsService",
	}[signal.Index()]
}

func (r *Receiver) newGRPCServer() *grpc.Server {
	creds := insecure.NewCredentials()
	if r.opts.GRPCTLS != nil {
		creds = credentials.NewTLS(r.opts.GRPCTLS)
	}
	server := grpc.NewServer(
		grpc.Creds(creds),
		grpc.ForceServerCodecV2(newRawCodec()),
		grpc.MaxRecvMsgSize(r.live.Load().GRPCMaxRequestSizeBytes),
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		grpc.StaticStreamWindowSize(streamWindowBytes),
		grpc.StaticConnWindowSize(connectionWindowBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(headerTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle, Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.InTapHandle(cutter),
	)
	for _, signal := range segment.Signals {
		server.RegisterService(r.serviceDesc(signal), nil)
	}
	grpc_health_v1.RegisterHealthServer(server, newHealth(r.opts.Ready, r.inHand))
	return server
}

func (r *Receiver) serviceDesc(signal segment.Signal) *grpc.ServiceDesc {
	export := func(_ any, ctx context.Context, receive func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		if !r.inHand.enter() {
			return nil, r.refuse(ctx, signal, stopping()).grpcError()
		}
		defer r.inHand.leave()
		if err := r.export(ctx, signal, receive); err != nil {
			return nil, r.refuse(ctx, signal, err).grpcError()
		}
		return new(response), nil
	}
	return &grpc.ServiceDesc{ServiceName: grpcService(signal), Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: export}}}
}

// export takes one request up to the point where it is durable.
func (r *Receiver) export(ctx context.Context, signal segment.Signal, receive func(any) error) error {
	settings := r.live.Load()
	tenant, err := settings.tenant(ctx, grpcCaller(ctx))
	if err != nil {
		return err
	}
	l := &lease{bodies: settings.bodies}
	defer l.release()
	m := &message{lease: l, limit: settings.GRPCMaxRequestSizeBytes}
	if err := receiveMessage(ctx, settings, receive, m); err != nil {
		return err
	}
	return r.ingest(ctx, settings, tenant, signal, m.body)
}

// receiveMessage reads the message of a call, when there is a place, within the read timeout.
func receiveMessage(ctx context.Context, settings *live, receive func(any) error, m *message) error {
	waiting, stopWaiting := context.WithTimeout(ctx, settings.ReadTimeout)
	defer stopWaiting()
	if settings.receiving.Acquire(waiting, 1) != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errBusy
	}
	defer settings.receiving.Release(1)
	var late atomic.Bool
	if cut, found := ctx.Value(cutKey{}).(context.CancelFunc); found {
		timer := time.AfterFunc(settings.ReadTimeout, func() {
			late.Store(true)
			cut()
		})
		defer timer.Stop()
	}
	switch err := receive(m); {
	case err == nil:
		return m.refused
	case late.Load():
		return slowClient()
	default:
		return receiveRefusal(err)
	}
}

// receiveRefusal classifies an error of the library for the count. The library has sent its own status by then: that of
// the gRPC specification for messages that are too large (RESOURCE_EXHAUSTED) or framed wrongly (INTERNAL).
func receiveRefusal(err error) error {
	refused := &refusal{reason: RefusedBadData, code: status.Code(err), text: status.Convert(err).Message()}
	if refused.code == codes.ResourceExhausted {
		refused.reason = RefusedTooLarge
	}
	if refused.code == codes.Canceled || refused.code == codes.DeadlineExceeded {
		refused.reason = RefusedCanceled
	}
	return refused
}

type cutKey struct{}

// cutter makes each call's context one that its handler can end: it is the only way to stop waiting for a message.
func cutter(ctx context.Context, _ *tap.Info) (context.Context, error) {
	ctx, cut := context.WithCancel(ctx) // ends with its parent, when the stream is closed
	return context.WithValue(ctx, cutKey{}, cut), nil
}

func grpcCaller(ctx context.Context) Caller {
	caller := Caller{Header: func(name string) []string { return metadata.ValueFromIncomingContext(ctx, name) }}
	if p, found := peer.FromContext(ctx); found {
		caller.RemoteAddr = p.Addr.String()
	}
	return caller
}
