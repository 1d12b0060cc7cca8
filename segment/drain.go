package segment

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// Cursor takes the progress of a drain. Advance is called by one goroutine, over a prefix of the source only.
type Cursor interface {
	Advance(p *Progress)
}

// Limits bound a drain. They are asked for before each step, so that they can be changed while it runs.
type Limits struct {
	InFlight        int           // requests at once
	MaxRequestBytes int           // merged bodies; a single larger frame goes alone
	WindowBytes     int           // bodies that are read and not yet passed by the cursor
	Ordered         bool          // one request at a time, so that frames arrive in order
	RetryInitial    time.Duration // first delay after a failure
	RetryMax        time.Duration // longest of our own delays
	ParkAfter       time.Duration // a group that fails for so long while others succeed is moved away; DrainOptions.Park
	MaxAge          time.Duration // drop older frames, counted; 0: never
}

// DrainOptions configure a drain.
type DrainOptions struct {
	Source Source
	Cursor Cursor
	Sink   func() Sink   // asked for at each attempt, so that it can be swapped
	Limits func() Limits // likewise
	Dead   DeadLetter
	Log    *zap.Logger
	// Split cuts a frame behind its first n records; nil: frames are not cut. Without an error both parts are valid bodies.
	Split func(f *Frame, n int) (head, tail []byte, err error)
	Park  Parking // nil: nothing is moved
	// Parked says that this is a parked lane: what is in it stays, or it would go from one to the next for as long as it is
	// refused.
	Parked bool
}

const (
	// maxRetryAfter caps the delay that a destination may ask for; it asks again then.
	maxRetryAfter = 5 * time.Minute
	// readRetry is the delay after the source failed, or a move.
	readRetry = time.Second
)

// Drain moves frames from a source to a sink and the cursor behind them: the one loop for local lanes, parked lanes, adopted
// lanes, dead letters and jobs. It reads ahead within a window, merges frames of one tenant and signal up to the
// destination's limit, keeps several requests in flight, and retries without end. What is refused for good is narrowed down
// to the offending records, which go to the dead letter. A group that fails while others succeed is moved to a parked lane.
//
// Commit point: none of its own. The cursor is advanced over a prefix, and only after the sink's success, the dead letter, a
// counted loss or a synced move (I11).
type Drain struct {
	o       DrainOptions
	events  chan event
	window  window
	groups  groups
	flying  int // goroutines that will send an event
	sending int // of them, with a request
	bisect  budget
	size    learnedSize
	parker  parker
	tookAt  time.Time // when the destination last took a request
	log     *limitedLog
}

// event is what the control loop receives: one of the fields is set.
type event struct {
	item    *Item
	request *attempt
	outcome Outcome
	aside   *attempt // was set aside, or err
	moved   *move    // was moved, or err
	err     error
	read    bool // the reader has ended
}

// Run drains until ctx ends, then waits for what is in flight. It returns when every goroutine of it has ended.
func (o DrainOptions) Run(ctx context.Context) {
	d := &Drain{o: o, events: make(chan event), log: newLimitedLog(o.Log)}
	d.window.freed = make(chan struct{}, 1)
	d.groups = newGroups()
	go d.read(ctx)
	d.loop(ctx)
}

func (d *Drain) loop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	reading, stop := true, ctx.Done()
	for reading || d.flying > 0 {
		if ctx.Err() == nil {
			timer.Reset(min(d.park(ctx), d.dispatch(ctx)))
		}
		select {
		case ev := <-d.events:
			switch {
			case ev.item != nil:
				d.add(ev.item)
			case ev.request != nil:
				d.flying--
				d.sending--
				d.settle(ctx, ev.request, ev.outcome)
			case ev.aside != nil:
				d.flying--
				d.settleAside(ev.aside, ev.err)
			case ev.moved != nil:
				d.flying--
				d.settleMove(ev.moved, ev.err)
			case ev.read:
				reading = false
			}
			d.advance()
		case <-timer.C:
		case <-stop:
			stop = nil
		}
	}
}

// read feeds the loop with items, within the window.
func (d *Drain) read(ctx context.Context) {
	defer func() { d.events <- event{read: true} }()
	for {
		if !d.window.waitRoom(ctx, func() int { return d.o.Limits().WindowBytes }) {
			return
		}
		it, err := d.o.Source.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.log.Error("read", "backlog not read; trying again", zap.Error(err))
			if !sleep(ctx, readRetry) {
				return
			}
			continue
		}
		if it.Frame != nil {
			d.window.take(len(it.Frame.Body))
		}
		d.events <- event{item: &it}
	}
}

// add puts an item into the window, and its frame into its group.
func (d *Drain) add(it *Item) {
	s := &slot{next: it.Next, again: it.Again, out: it.Lost.Add(it.HandedOver)}
	s.ledger.HandedOver = it.HandedOver.Records
	if it.Lost != (Totals{}) {
		s.ledger.lose(it.Cause, it.Lost.Records)
	}
	if s.frame = it.Frame; s.frame == nil {
		s.done = true
	} else {
		s.out = s.out.Add(s.frame.Totals())
		d.hold(d.groups.push(s))
	}
	if d.window.slots = append(d.window.slots, s); len(d.window.slots) == 1 {
		d.o.Cursor.Advance(&Progress{Oldest: s.oldest()})
	}
}

// advance moves the cursor over the done prefix of the window.
func (d *Drain) advance() {
	var p Progress
	var n, freed int
	for _, s := range d.window.slots {
		if !s.done {
			break
		}
		n++
		p.To, p.Again = s.next, p.Again.Add(s.again)
		p.Out = p.Out.Add(s.out)
		p.Ledger.Add(&s.ledger)
		freed += s.bytes
	}
	rest := d.window.slots[n:]
	if len(rest) > 0 {
		p.Oldest = rest[0].oldest()
	}
	if n == 0 {
		return
	}
	clear(d.window.slots[:n])
	d.window.slots = rest
	d.window.free(freed)
	d.o.Cursor.Advance(&p)
}

// limits are those of the destination, and what was learned about it.
func (d *Drain) limits(now time.Time) Limits {
	lim := d.o.Limits()
	lim.MaxRequestBytes = d.size.limit(lim.MaxRequestBytes, now)
	if lim.InFlight = max(lim.InFlight, 1); lim.Ordered {
		lim.InFlight = 1
	}
	return lim
}

// dispatch starts requests while there is room for them, and returns when to look again.
func (d *Drain) dispatch(ctx context.Context) time.Duration {
	now := time.Now()
	lim := d.limits(now)
	for d.sending < lim.InFlight {
		a, wait := d.groups.next(now, &lim, d.split)
		if a == nil {
			d.advance() // frames may have gone for their age
			return wait
		}
		d.flying++
		d.sending++
		sink := d.o.Sink()
		go func() {
			r := a.request()
			d.events <- event{request: a, outcome: sink.Deliver(ctx, &r)}
		}()
	}
	return time.Hour // an outcome wakes the loop
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
