// Package segment keeps frames durable on local disk and drains them: the frame format, segment files (one tidwall/wal log
// each), lanes with group commit and an export cursor, and the one drain loop. docs/format.md specifies the bytes,
// docs/protocol.md the invariants.
//
// It guarantees: Lane.Append returns nil only after the frame and the directory entries that lead to it are as durable as
// Settings.Ack says; a frame that was answered is delivered, set aside, or counted as lost with a cause; a body that was never
// appended is never delivered; memory and the time of a start do not depend on the backlog.
//
// It assumes: one process per directory at a time; a file system on which a synced file in a synced directory survives power
// loss; sinks that answer Delivered only when they have it. It knows nothing of OTLP beyond the three signals, and nothing of
// buckets.
//
// Commit points: the sync of a block for an answer, the sync of a cursor slot for progress; each file says its own.
package segment
