package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ingest-agent/agent"
	"ingest-agent/segment"
	"ingest-agent/segment/vfs"
)

func newInspect() *cobra.Command {
	var asJSON, frames bool
	cmd := &cobra.Command{
		Use:   "inspect PATH-or-URL",
		Short: "Shows what a data directory holds: lanes, segments, cursors, frames; writes nothing",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			visit := func(segment.Frame, bool) error { return nil }
			if frames {
				visit = frameWriter(out, asJSON)
			}
			report, err := inspectPath(args[0], visit)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(out)
				enc.SetIndent("", "  ")
				return enc.Encode(report)
			}
			return report.write(out)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON; with --frames, one line for each frame first")
	cmd.Flags().BoolVar(&frames, "frames", false, "also list each frame")
	return cmd
}

func newVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify PATH-or-URL",
		Short: "Checks every checksum; exit code 0 only if all is whole",
		Long: "Checks every checksum in a data directory and names file and range of each damage. Writes nothing. A torn tail counts\n" +
			"as damage here, since its bytes are not whole; a crash leaves one behind, and the next start cuts it. Run it on the\n" +
			"directory of an agent that is stopped: a segment that is being written may end in half a block.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			report, err := inspectPath(args[0], func(segment.Frame, bool) error { return nil })
			if err != nil {
				return err
			}
			found := report.problems()
			for _, p := range found {
				fmt.Fprintln(cmd.OutOrStdout(), p)
			}
			if len(found) > 0 {
				return fmt.Errorf("%s: %d problems; run `ingest-agent inspect %[1]s` for what can still be read", args[0], len(found))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: whole: %d lanes, %d segments, %d dead letters, %d frames\n",
				args[0], len(report.Lanes), report.segments(), len(report.Dead), report.frames())
			return nil
		},
	}
}

// dirReport is what a data directory holds.
type dirReport struct {
	Path       string                  `json:"path"`
	Lanes      []*segment.LaneReport   `json:"lanes"`
	Dead       []segment.SegmentReport `json:"dead_letters"`
	Quarantine quarantineReport        `json:"quarantine"`
	Other      []string                `json:"other,omitempty"` // names among the lanes that are no lanes
}

type quarantineReport struct {
	Files     int   `json:"files"`
	SizeBytes int64 `json:"size_bytes"`
}

// inspectPath reads a data directory.
func inspectPath(path string, visit func(f segment.Frame, pending bool) error) (*dirReport, error) {
	if strings.HasPrefix(path, "s3:") || strings.HasPrefix(path, "file:") {
		return nil, usageError(fmt.Errorf("%s: inspecting a bucket is not built yet; name a data directory", path))
	}
	layout := agent.LayoutOf(path)
	if info, err := os.Stat(layout.Lanes); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s: not a data directory (no lanes folder in it); name the data_dir of an agent", path)
	}
	fsys := vfs.OS()
	r := &dirReport{Path: path, Lanes: []*segment.LaneReport{}, Dead: []segment.SegmentReport{}}
	ids, other, err := segment.ListLanes(fsys, layout.Lanes)
	if err != nil {
		return nil, err
	}
	r.Other = other
	var failed error
	see := func(f *segment.Frame, pending bool) {
		if err := visit(*f, pending); err != nil && failed == nil {
			failed = err
		}
	}
	for _, id := range ids {
		lane, err := segment.InspectLane(fsys, layout.Lanes, id, see)
		if err != nil {
			return nil, err
		}
		r.Lanes = append(r.Lanes, lane)
	}
	if r.Dead, err = inspectDead(fsys, layout.Dead, func(f *segment.Frame) { see(f, false) }); err != nil {
		return nil, err
	}
	r.Quarantine.Files, r.Quarantine.SizeBytes, err = segment.NewQuarantine(fsys, layout.Quarantine, 0).Usage()
	return r, errors.Join(err, failed)
}

// inspectDead reads the dead letters: <dir>/<owner>/<lane>/<seq>-….seg.
func inspectDead(fsys vfs.FS, dir string, visit func(f *segment.Frame)) ([]segment.SegmentReport, error) {
	reports := []segment.SegmentReport{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return fs.SkipAll
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".seg") {
			return err
		}
		lane, err := segment.ParseLaneID(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return fmt.Errorf("read dead letter %s: %w", path, err)
		}
		number, _, _ := strings.Cut(d.Name(), "-")
		seq, err := segment.ParseSeq(number)
		if err != nil {
			return fmt.Errorf("read dead letter %s: %w", path, err)
		}
		report, err := segment.InspectObject(fsys, path, segment.Birth{Lane: lane, Seq: seq}, visit)
		if err != nil {
			return err
		}
		if !report.Sealed && len(report.Damage) == 0 {
			report.Damage = append(report.Damage, segment.Damage{Path: path, To: report.SizeBytes, Reason: "not closed by its footer"})
		}
		reports = append(reports, *report)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("inspect dead letters: %w", err)
	}
	return reports, nil
}

func (r *dirReport) segments() (n int) {
	for _, l := range r.Lanes {
		n += len(l.Segments)
	}
	return n
}

func (r *dirReport) frames() (n uint64) {
	for _, l := range r.Lanes {
		for _, s := range l.Segments {
			n += s.Totals.Frames
		}
	}
	for _, d := range r.Dead {
		n += d.Totals.Frames
	}
	return n
}

// problems names everything that is not whole.
func (r *dirReport) problems() (out []string) {
	for _, l := range r.Lanes {
		for _, d := range l.CursorDamage {
			out = append(out, fmt.Sprintf("%s: cursor: %s", l.Lane, d))
		}
		for _, s := range l.Segments {
			for _, d := range s.Damage {
				out = append(out, d.String())
			}
		}
		if m := l.Missing; m != (segment.Totals{}) {
			out = append(out, fmt.Sprintf("%s: %d frames with %d records are missing", l.Lane, m.Frames, m.Records.Sum()))
		}
	}
	for _, s := range r.Dead {
		for _, d := range s.Damage {
			out = append(out, d.String())
		}
	}
	return out
}

func (r *dirReport) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LANE\tCURSOR\tSEGMENTS\tBYTES\tPENDING FRAMES\tPENDING RECORDS\tDAMAGED\tMISSING RECORDS")
	for _, l := range r.Lanes {
		cursor := "none"
		if l.Cursor != nil {
			cursor = l.Cursor.Exported.String()
		}
		var size int64
		damaged := 0
		for _, s := range l.Segments {
			size += s.SizeBytes
			damaged += len(s.Damage)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", l.Lane, cursor, len(l.Segments), size,
			l.Pending.Frames, l.Pending.Records.Sum(), damaged, l.Missing.Records.Sum())
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "SEGMENT\tSEALED\tCREATED\tBYTES\tFRAMES\tLOGS\tTRACES\tMETRICS\tOWNER")
	for _, l := range r.Lanes {
		for _, s := range l.Segments {
			t := s.Totals
			fmt.Fprintf(w, "%s/%s\t%v\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", l.Lane, s.Seq, s.Sealed, s.Created.Format(time.RFC3339),
				s.SizeBytes, t.Frames, t.Records[0], t.Records[1], t.Records[2], s.Owner)
		}
	}
	fmt.Fprintf(w, "\ndead letters: %d; quarantine: %d files, %d bytes\n", len(r.Dead), r.Quarantine.Files, r.Quarantine.SizeBytes)
	for _, p := range r.problems() {
		fmt.Fprintln(w, p)
	}
	return w.Flush()
}

// frameWriter lists frames, as JSON lines or as text.
func frameWriter(out io.Writer, asJSON bool) func(f segment.Frame, pending bool) error {
	type line struct {
		ID       string `json:"id"`
		Position string `json:"position"`
		Signal   string `json:"signal"`
		Tenant   string `json:"tenant"`
		Received string `json:"received"`
		Records  uint32 `json:"records"`
		Bytes    int    `json:"size_bytes"`
		Pending  bool   `json:"pending"`
	}
	enc := json.NewEncoder(out)
	return func(f segment.Frame, pending bool) error {
		l := line{f.ID.String(), f.Position.String(), f.Signal.String(), f.Tenant, f.Received.UTC().Format(time.RFC3339Nano),
			f.Records, len(f.Body), pending}
		if asJSON {
			return enc.Encode(l)
		}
		_, err := fmt.Fprintf(out, "%s %s %s records=%d bytes=%d received=%s pending=%v\n",
			l.ID, l.Signal, l.Tenant, l.Records, l.Bytes, l.Received, l.Pending)
		return err
	}
}
