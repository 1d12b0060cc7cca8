//go:build unix

package s3test

import (
	"net"
	"strings"
)

// seaweedPorts are the flags of its ports, all of which it would take fixed ones for; the first is that of S3.
func seaweedPorts() []string {
	return []string{
		"s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc", "master.port", "master.port.grpc", "volume.port",
		"volume.port.grpc", "webdav.port", "admin.port", "admin.port.grpc",
	}
}

func seaweedArgs(addresses []string, folder string) []string {
	args := []string{
		"mini", "-dir=" + folder, "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0", "-s3.port.lance=0",
		"-admin.port.legacy=0", "-admin.ui=false", "-s3.allowBackslashInKey",
	}
	for i, flag := range seaweedPorts() {
		// One without a port is a mistake of the flag's, which the program then says.
		_, port, _ := net.SplitHostPort(addresses[i])
		args = append(args, strings.Join([]string{"-", flag, "=", port}, ""))
	}
	return args
}
