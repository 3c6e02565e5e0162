package redisdelay

import (
	"context"
	"net"
	"time"
)

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialer hides failures to connect from the pool, as connections of which the
// first use fails. After a number of failed dials the pool would refuse to dial,
// and try only once a second by itself, so that an outage would last up to a
// second longer than it is.
func dialer(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return failedConn{err}, nil
		}
		return c, nil
	}
}

// failedConn is a connection that was not made.
type failedConn struct{ err error }

func (c failedConn) Read([]byte) (int, error)  { return 0, c.err }
func (c failedConn) Write([]byte) (int, error) { return 0, c.err }

func (c failedConn) Close() error                     { return nil }
func (c failedConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c failedConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c failedConn) SetDeadline(time.Time) error      { return nil }
func (c failedConn) SetReadDeadline(time.Time) error  { return nil }
func (c failedConn) SetWriteDeadline(time.Time) error { return nil }
