package config

// unbuilt lists the keys that are accepted and checked but have no effect yet. Whoever builds a part takes its line out.
func unbuilt() []string {
	return []string{"jobs"}
}

// Unbuilt returns the keys that were set in c but have no effect yet, for one line each in the log.
func Unbuilt(c Config) []string {
	var keys []string
	for _, key := range unbuilt() {
		if c.IsSet(key) {
			keys = append(keys, key)
		}
	}
	if c.WAL.OnFull == OnFullDropOldest {
		keys = append(keys, "wal.on_full: drop_oldest")
	}
	return keys
}
