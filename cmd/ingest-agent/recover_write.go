package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"ingest-agent/recovery"
	"ingest-agent/segment"
)

func writeJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func writeDryRun(out io.Writer, r *recovery.DryRunReport) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(r.Owners) > 0 {
		fmt.Fprintln(w, "OWNER\tNODE\tSTATE\tAGE\tLANES\tOBJECTS\tBYTES\tRECORDS OWED\tVERDICT")
	}
	for i := range r.Owners {
		o := &r.Owners[i]
		owed, verdict := fmt.Sprint(o.Owed.Sum()), o.Verdict
		if o.Unnamed > 0 && !o.SignedOff {
			owed += "+" // and what objects hold that the register does not name
		}
		if o.Claimable && len(o.Unknown) > 0 {
			verdict += "; in part: unknown destination " + strings.Join(o.Unknown, ", ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", o.Owner, dash(o.Node), dash(o.State),
			recovery.Coarse(time.Duration(o.AgeSeconds)*time.Second), o.Lanes, o.Objects, o.Bytes, owed, verdict)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	for _, o := range r.Orphans {
		fmt.Fprintf(out, "orphans: %d objects, %d bytes of owner %s, which has no register; nothing touches them\n", o.Objects, o.Bytes, o.Owner)
	}
	for _, key := range r.Foreign.Keys {
		fmt.Fprintf(out, "foreign: %s; nothing touches it\n", key)
	}
	for i := range r.Damage {
		fmt.Fprintf(out, "damage: %s\n", &r.Damage[i])
	}
	if n := r.Totals.Damage - uint64(len(r.Damage)); n > 0 {
		fmt.Fprintf(out, "damage: %d more\n", n)
	}
	if n := r.Totals.Foreign - uint64(len(r.Foreign.Keys)); n > 0 {
		fmt.Fprintf(out, "foreign: %d more\n", n)
	}
	for i, s := range r.Steps {
		fmt.Fprintf(out, "%d. %s\n", i+1, describeStep(&s))
	}
	if len(r.Steps) == 0 {
		fmt.Fprintln(out, "a run would do nothing")
	}
	t := &r.Totals
	_, err := fmt.Fprintf(out, "total: owners %d, owing %d, claimable %d, of unknown destinations %d; objects %d, bytes %d; records owed %s; "+
		"orphan objects %d; foreign objects %d; damage %d\n", t.Owners, t.Owing, t.Claimable, t.Unknown, t.Objects, t.Bytes,
		bySignal(t.Owed), t.Orphans, t.Foreign, t.Damage)
	return err
}

func describeStep(s *recovery.Step) string {
	switch s.Do {
	case recovery.StepAdopt:
		return fmt.Sprintf("would adopt %s and deliver %d records from %d objects", s.Owner, s.Records.Sum(), s.Objects)
	case recovery.StepSweep:
		return fmt.Sprintf("would delete %d late objects of %s", s.Objects, s.Owner)
	default:
		return "would delete the register of " + s.Owner
	}
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// recovered is the stable JSON of a pass.
type recovered struct {
	Owners    int                         `json:"owners"` // registers that were looked at
	Adoptions map[recovery.Outcome]uint64 `json:"adoptions"`
	Records   segment.Ledger              `json:"records"`
	Swept     uint64                      `json:"late_objects_deleted"`
	Buried    uint64                      `json:"registers_deleted"`
	Orphans   []string                    `json:"orphans"` // owners that have objects and no register
	Foreign   int                         `json:"foreign_objects"`
	Left      []leftOwner                 `json:"left"`
}

// leftOwner is an owner that is claimable after a pass.
type leftOwner struct {
	Owner   string           `json:"owner"`
	Node    string           `json:"node"`
	Verdict string           `json:"verdict"`
	Records segment.Counts   `json:"records_owed"`
	Unknown []string         `json:"unknown_destinations"`
	Outcome recovery.Outcome `json:"outcome"`
	Error   string           `json:"error"`
}

func writeRecovered(out io.Writer, asJSON bool, r *recovery.Report) error {
	if !asJSON {
		return writeRecoveredText(out, r)
	}
	report := recovered{
		Owners: r.Owners, Adoptions: r.Adoptions, Records: r.Ledger, Swept: r.Swept, Buried: r.Buried,
		Orphans: append([]string{}, r.Orphans...), Foreign: r.Foreign, Left: []leftOwner{},
	}
	if report.Adoptions == nil {
		report.Adoptions = map[recovery.Outcome]uint64{}
	}
	for _, l := range r.Left {
		left := leftOwner{
			Owner: l.Owner, Node: l.Node, Verdict: l.Verdict.String(), Records: l.Records,
			Unknown: append([]string{}, l.Verdict.Unknown...), Outcome: l.Outcome,
		}
		if l.Err != nil {
			left.Error = l.Err.Error()
		}
		report.Left = append(report.Left, left)
	}
	return writeJSON(out, report)
}

func writeRecoveredText(out io.Writer, r *recovery.Report) error {
	var adoptions []string
	for _, o := range slices.Sorted(maps.Keys(r.Adoptions)) {
		adoptions = append(adoptions, fmt.Sprintf("%s %d", o, r.Adoptions[o]))
	}
	if adoptions == nil {
		adoptions = []string{"none"}
	}
	fmt.Fprintf(out, "owners: %d; adoptions: %s; late objects deleted: %d; registers deleted: %d\n", r.Owners, strings.Join(adoptions, ", "),
		r.Swept, r.Buried)
	l := &r.Ledger
	_, err := fmt.Fprintf(out, "records: delivered %s; rejected %s; dead letters %s; sent more than once %s\n",
		bySignal(l.Delivered), bySignal(l.Rejected), bySignal(l.DeadLetter), bySignal(l.Resent))
	for _, cause := range slices.Sorted(maps.Keys(l.Lost)) {
		fmt.Fprintf(out, "lost, cause %s: %s records\n", cause, bySignal(l.Lost[cause]))
	}
	for _, id := range r.Orphans {
		fmt.Fprintf(out, "orphans: objects of owner %s, which has no register; nothing touches them\n", id)
	}
	if r.Foreign > 0 {
		fmt.Fprintf(out, "foreign: %d objects; nothing touches them\n", r.Foreign)
	}
	return err
}

// maxLeftNamed bounds the owners that an error names one by one.
const maxLeftNamed = 100

// recoverLeft names what is claimable after a pass, if something is.
func recoverLeft(r *recovery.Report) error {
	if len(r.Left) == 0 {
		return nil
	}
	errs := []error{fmt.Errorf("recover: %d owners are left that are claimable; --dry-run shows them", len(r.Left))}
	for i, l := range r.Left {
		if i == maxLeftNamed {
			errs = append(errs, fmt.Errorf("recover: left: %d more", len(r.Left)-i))
			break
		}
		why := l.Verdict.String()
		if l.Outcome != "" {
			why += "; adopted, and " + string(l.Outcome) + " (the log says why)"
		}
		if l.Err != nil {
			why = l.Err.Error()
		}
		if l.Verdict.Claimable() && len(l.Verdict.Unknown) > 0 {
			why += "; unknown destination " + strings.Join(l.Verdict.Unknown, ", ")
		}
		errs = append(errs, fmt.Errorf("recover: left: owner %s (node %s, %d records): %s", l.Owner, dash(l.Node), l.Records.Sum(), why))
	}
	return errors.Join(errs...)
}
