package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

// release is set by the linker: -ldflags "-X main.release=v1.2.3".
var release string

// version is the release, or what the build knows of its source.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}

func runVersion(_ context.Context, c *command, std stdio, args []string) error {
	fs := newFlags(c)
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parseFlags(c, fs, std, args, 0); err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(std.out).Encode(map[string]string{
			"version": version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
		})
	}
	fmt.Fprintf(std.out, "%s %s (%s, %s/%s)\n", program, version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}
