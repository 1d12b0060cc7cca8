package load

import (
	"bufio"
	"fmt"
	"io"

	"ingest-agent/bench/seqset"
)

// ReadAckLog adds the numbers of an AckLog to a set. A last line without its end is left out: its writer was stopped.
func ReadAckLog(r io.Reader, into *seqset.Set) error {
	lines := bufio.NewReader(r)
	for number := 1; ; number++ {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read ack log: %w", err)
		}
		var first uint64
		var count int
		if _, err := fmt.Sscanf(line, "%d %d\n", &first, &count); err != nil {
			return fmt.Errorf("read ack log: line %d: %w", number, err)
		}
		into.AddRange(first, count)
	}
}
