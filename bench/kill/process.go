package kill

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is one life of the agent.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
	err    error         // of the end; read only after exited
}

// start begins a process whose output goes to a log file. It is killed by the kernel if this process dies.
func start(cmd *exec.Cmd, logPath string) (*process, error) {
	log, err := os.Create(logPath)
	if err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd)
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel means the thread when it says parent, so that must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := errors.Join(cmd.Start(), log.Close()) // the child has its own descriptor
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	return p, nil
}

// kill ends the process as a crash does. It may be called more than once, and after the end.
func (p *process) kill() { _ = p.cmd.Process.Kill() } // the only error is that it has ended

// terminate asks the process to stop.
func (p *process) terminate() { _ = p.cmd.Process.Signal(syscall.SIGTERM) } // as above

// wait reports whether the process ended in time.
func (p *process) wait(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// killed reports whether it was SIGKILL that ended the process. It must have ended.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// lastWordsBytes is how much of a log a violation shows.
const lastWordsBytes = 600

// lastWords is what a log says about the end, in one line: from the start of a panic, or else the end of the log.
func lastWords(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if at := bytes.LastIndex(append([]byte("\n"), text...), []byte("\npanic: ")); at >= 0 {
		text = text[at:min(at+lastWordsBytes, len(text))]
	}
	text = text[max(0, len(text)-lastWordsBytes):]
	return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", " | ")
}
