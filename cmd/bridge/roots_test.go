package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"
)

// TestEmbeddedRoots: a process that finds no certificates where a system has them
// has those of the program. Which are read once in a process, so it is another one.
func TestEmbeddedRoots(t *testing.T) {
	if os.Getenv("SSL_CERT_FILE") == "/nowhere" {
		roots, err := x509.SystemCertPool()
		if err != nil || roots.Equal(x509.NewCertPool()) {
			t.Errorf("no certificates: %v", err)
		}
		return
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEmbeddedRoots$", "-test.v")
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE=/nowhere", "SSL_CERT_DIR=/nowhere")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
