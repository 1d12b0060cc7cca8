// Package child runs processes that harnesses start and kill. None outlives its harness, on Linux however that ends.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is one life of a program.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error
}

// Start begins a process whose output is added to a log file.
func Start(cmd *exec.Cmd, logPath string) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("start process: %w", err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd)
	p := &Process{cmd: cmd, exited: make(chan struct{})}
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
		return nil, fmt.Errorf("start process: %w", err)
	}
	return p, nil
}

// ID is that of the operating system.
func (p *Process) ID() int { return p.cmd.Process.Pid }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err is how the process ended. It must have.
func (p *Process) Err() error { return p.err }

// Kill ends the process as a crash does. It may be called more than once, and after the end.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() } // the only error is that it has ended

// Terminate asks the process to stop.
func (p *Process) Terminate() { _ = p.cmd.Process.Signal(syscall.SIGTERM) } // as above

// Wait reports whether the process ended in time.
func (p *Process) Wait(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// Killed reports whether it was SIGKILL that ended the process. It must have ended.
func (p *Process) Killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
