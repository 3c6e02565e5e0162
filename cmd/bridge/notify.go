package main

import (
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells the service manager that started this process, if one did that
// listens (sd_notify(3)), where the bridge is in its life.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("the service manager cannot be told: it may take the bridge for hanging", "state", state, "error", err)
	}
}

func notifyReady(log *slog.Logger)    { notify(log, daemon.SdNotifyReady) }
func notifyStopping(log *slog.Logger) { notify(log, daemon.SdNotifyStopping) }

// notifyReloading is to be followed by notifyReady. With Type=notify-reload systemd
// knows by the time that this reload is the one it asked for.
func notifyReloading(log *slog.Logger) {
	notify(log, daemon.SdNotifyReloading+"\n"+daemon.SdNotifyMonotonicUsec())
}
