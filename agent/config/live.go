package config

import "sync/atomic"

// Live holds a value that may be replaced while others read it: a part that can take a new section keeps a *Live of it and
// calls Load each time that it needs one. Readers and writers may be on any goroutine.
type Live[T any] struct{ value atomic.Pointer[T] }

// NewLive returns a holder of v.
func NewLive[T any](v T) *Live[T] {
	l := new(Live[T])
	l.Store(v)
	return l
}

// Load returns the value stored last. Maps and slices in it are shared and must not be changed.
func (l *Live[T]) Load() T { return *l.value.Load() }

// Store replaces the value.
func (l *Live[T]) Store(v T) { l.value.Store(&v) }
