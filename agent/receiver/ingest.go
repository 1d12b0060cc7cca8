package receiver

import (
	"context"

	"go.uber.org/zap"

	"ingest-agent/agent/otlpwire"
	"ingest-agent/segment"
)

// tenant resolves who sends a request, and whether anything may be accepted of it now, before any of its body is read.
func (l *live) tenant(ctx context.Context, c Caller) (string, error) {
	tenant := DefaultTenant
	if l.Tenant != nil {
		var err error
		if tenant, err = l.Tenant(ctx, c); err != nil {
			return "", err
		}
	}
	return tenant, l.rates[tenant].take(0)
}

// ingest checks body and makes it durable. It returns nil when a success may be answered.
func (r *Receiver) ingest(ctx context.Context, settings *live, tenant string, signal segment.Signal, body []byte) error {
	info, err := otlpwire.Check(signal, body)
	if err != nil {
		return badData("%v", err) // names offsets and fields only
	}
	if info.Records == 0 {
		return nil
	}
	rate := settings.rates[tenant]
	if err := rate.take(len(body)); err != nil {
		return err
	}
	if err := r.opts.Store.Accept(ctx, Request{Tenant: tenant, Signal: signal, Body: body, Info: info}); err != nil {
		rate.giveBack(len(body))
		return err
	}
	r.opts.Observer.Accepted(signal, tenant, info.Records, len(body))
	return nil
}

// refuse turns err into the answer to a request, counts it, and logs its cause if it is ours.
func (r *Receiver) refuse(ctx context.Context, signal segment.Signal, err error) *refusal {
	refused := refusalOf(ctx, err)
	r.opts.Observer.Refused(signal, refused.reason)
	if refused.cause != nil {
		r.log.refused(refused.reason, zap.String("signal", signal.String()), zap.Error(refused.cause))
	}
	return refused
}
