package agent

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"ingest-agent/agent/export"
	"ingest-agent/recovery"
	"ingest-agent/segment"
)

// adopting is what draining other owners' lanes needs of an agent: the same loop, sinks and dead letters as for its own.
type adopting struct {
	dests      map[string]*destination
	dead       *export.DeadLetters
	quarantine *segment.Quarantine
	ledger     *adoptedLedger
	log        *zap.Logger
}

// options completes those of a recovery.
func (d adopting) options(o recovery.Options) recovery.Options {
	o.Knows = func(name string) bool { return d.dests[name] != nil }
	o.Drain = d.drain
	o.Adopted = d.adopted
	o.Quarantine = d.keep
	return o
}

func (d adopting) drain(ctx context.Context, l recovery.Adopted) {
	dest := d.dests[l.Lane.Destination]
	log := d.log.With(zap.String("owner", l.Owner), zap.Stringer("lane", l.Lane))
	segment.DrainOptions{
		Source: l.Source, Cursor: l.Cursor, Sink: dest.current, Limits: dest.parkedLimits, Dead: d.dead, Log: log, Split: splitFrame,
	}.Run(ctx)
}

// adopted books what became of records. The register has it already: what this file misses is missing in both sides of it.
func (d adopting) adopted(_ string, lane segment.LaneID, p segment.Progress) {
	if err := d.ledger.book(lane.Destination, &p.Ledger); err != nil {
		d.log.Warn("ledger of adopted records not written; its counters may begin lower after a restart", zap.Error(err))
	}
}

// keep keeps the damaged bytes of an object.
func (d adopting) keep(_ segment.LaneID, key string, data []byte, damage []segment.Damage) error {
	d.log.Error("damage in segment object", zap.String("key", key), zap.Any("damage", damage))
	if err := d.quarantine.KeepObject(key, data, damage); err != nil {
		return fmt.Errorf("keep damaged bytes of object %s: %w", key, err)
	}
	return nil
}
