// Package interop tests the agent between real clients and real backends: the OpenTelemetry Go SDK and the OpenTelemetry
// Collector, both as their users run them, in front of the agent and behind it.
//
// It guarantees nothing to others: all of it is tests. The agent is its binary, built from this tree and started as a
// process. What arrives is compared with what the same client sends to a server directly: each record byte for byte, or, where
// a Collector has written it anew, as that reads it.
//
// It assumes loopback only, and that the Collector's receivers, processors and exporters, joined here without its service
// and configured by its own keys, behave as they do in a Collector.
package interop
