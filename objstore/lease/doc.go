// Package lease is the one fencing primitive: a register, which is a small object that is only ever changed by compare-and-swap
//
//	{"format":1,"epoch":7,"holder":"<process>","node":"web-3","write_id":"…","beat":41,"state":"live","body":{…}}
//
// and so at once heartbeat, lease, commit log and progress record. Observe reads it, Judge says whether it may be taken,
// Acquire takes it on the version that was judged, Renew beats, Commit changes state and body and beats, Release clears the
// holder. What the states are, and which follows which, is the user's: an Edit refuses what must not be.
//
// Commit point: the bucket has accepted a Put on the version last read.
//
// # Guarantee
//
// Epochs of a register only grow, and each has at most one holder. A change is made on the version that was read, or not at
// all; nothing that a process does once it is fenced is ever part of the register. What a caller is told is true: nil is
// done, ErrFenced and ErrLost are final, and where that leaves open whether the change was in force before, ErrUnknown says
// so. At no moment do two processes have a Lease that is Held, or a context of Keep that has not ended; but one whose
// register somebody has vacated or fenced by Change hears of that with its next beat, and only its writes are stopped before.
//
// # Assumptions
//
// The bucket keeps the contract of objstore.Bucket, and its preconditions are real (see objstore.Probe). A holder's name
// belongs to one process and, in it, to one goroutine at a time per register. All processes use the same StaleAfter, T
// below, and the clocks of the bucket and of all hosts run at rates within a factor of two; where they stand is no matter,
// and never compared between hosts. A register is not deleted while a write of an earlier epoch can still be on its way, and
// Release does not delete it. While a machine is suspended its monotonic clock may stand still: Held, and so Commit, asks the
// wall clock too, but the context of Keep ends with the next beat.
//
// A Get never returns the content of one version under the name of a later one. The other way round is harmless: what is
// built on it names a version that is gone.
//
// # Why it holds
//
// One writer per version: each write names the version it replaces, and carries a new write id, so that no two writes are
// equal and no version ever comes back, also where versions are hashes of the content. Of all writes on one version one is
// done. Acquire adds one to the epoch of the version it replaces, so epochs along the chain of versions never fall, and the
// holder of an epoch is the one whose Acquire made it. A write of a fenced process names a version that is gone.
//
// Unknown is not a result: after a Put that nobody answered the register is read. It carries the write's id: done. It has
// the version that was to be replaced: the write may still land, so the same write is tried again and again until one of
// its copies, or somebody's other write, has moved the version; meanwhile the lease is not Held. It is of this epoch and
// holder, but another version (an earlier write of ours has landed late, or somebody amended the body): all our writes on
// the old version are dead, the edit is applied to what was read. Anything else: fenced. A refused precondition is read
// back in the same way, as it may be the echo of our own success.
//
// Time: a beat that was sent at s, by the holder's clock, is in the register at s or later. The holder stops by itself at
// s + T/2 unless a later beat is confirmed by then; every call that it makes while it holds the lease ends by then. Others
// take the register when the bucket says that its last write is older than T, or when they have seen no other beat for T
// since this one first reached them; both began at s or later, and end at s + T or later, so half of T is left for clocks that
// run apart and for calls that end a little after their context. Whole seconds are rounded so that a beat is taken for
// younger. Clocks only choose who tries: a take-over replaces the version that was judged, and a beat that came between makes
// it fail.
//
// # Shape
//
// What is decided is in change, as steps without calls or clocks: (state, event) -> effect. The goroutine of the caller
// carries the effects out, one at a time; the changes of one Lease, the keeper's beats among them, take turns.
package lease
