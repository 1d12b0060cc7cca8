package receiver

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"ingest-agent/segment"
)

// watchInterval is how often a watched readiness is looked at.
const watchInterval = time.Second

// health is the gRPC health service. The library's own keeps watches open for ever, which would hold up every graceful
// stop.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	ready    func() error
	inHand   *inHand
	services map[string]bool
}

func newHealth(ready func() error, inHand *inHand) *health {
	h := &health{ready: ready, inHand: inHand, services: map[string]bool{"": true}}
	for _, signal := range segment.Signals {
		h.services[grpcService(signal)] = true
	}
	return h
}

func (h *health) status() grpc_health_v1.HealthCheckResponse_ServingStatus {
	select {
	case <-h.inHand.stopping:
		return grpc_health_v1.HealthCheckResponse_NOT_SERVING
	default:
	}
	if h.ready() != nil {
		return grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return grpc_health_v1.HealthCheckResponse_SERVING
}

// Check answers SERVING if a request would now be made durable.
func (h *health) Check(_ context.Context, req *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if !h.services[req.GetService()] {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	return &grpc_health_v1.HealthCheckResponse{Status: h.status()}, nil
}

// Watch sends each change until the client leaves or the receiver stops.
func (h *health) Watch(req *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	last := grpc_health_v1.HealthCheckResponse_UNKNOWN
	for {
		now := grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN
		if h.services[req.GetService()] {
			now = h.status()
		}
		if now != last {
			if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-ticker.C:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-h.inHand.stopping:
			return status.Error(codes.Unavailable, "the agent is stopping")
		}
	}
}
