package limit

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

// laneSpaceBytes is more than a round writes.
const laneSpaceBytes = 4 * maxRoundBytes

// Lane is the agent's append path: each part is a frame, each batch one commit of a lane.
func Lane() Side {
	return Side{Name: "lane", Open: func(dir string) (Appender, error) {
		fsys := vfs.OS()
		l, err := segment.OpenLane(segment.LaneOptions{
			FS: fsys, Dir: filepath.Join(dir, "lanes"), ID: segment.LaneID{Destination: "bench"},
			Owner:      segment.OwnerID(ulid.Make()),
			Space:      segment.NewSpace(segment.SpaceOptions{MaxBytes: laneSpaceBytes}),
			Quarantine: segment.NewQuarantine(fsys, filepath.Join(dir, "quarantine"), segment.DefaultQuarantineBytes),
			Log:        zap.NewNop(),
			Settings:   segment.Settings{Ack: segment.AckDisk, SegmentSizeBytes: 8 << 20, SegmentAge: time.Hour},
		})
		if err != nil {
			return nil, fmt.Errorf("open lane: %w", err)
		}
		return &lane{lane: l}, nil
	}}
}

type lane struct {
	lane   *segment.Lane
	frames []segment.Frame
}

func (l *lane) Append(batch [][]byte) error {
	l.frames = l.frames[:0]
	for _, part := range batch {
		l.frames = append(l.frames, segment.Frame{
			Signal: segment.Logs, Tenant: "default", Received: time.Now(), Records: 10, Body: part,
		})
	}
	return l.lane.AppendAll(context.Background(), l.frames)
}

func (l *lane) Close() error { return l.lane.Close() }
