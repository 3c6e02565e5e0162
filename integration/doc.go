// Package integration tests the whole: bridges, stores, a NATS server and a
// redis-server, with faults. Nothing imports it.
//
// A [Checker] is between the test and what it tests. Producers tell it what
// they send and what they are answered, workers what they are delivered; in
// the end it tells which of these guarantees was broken:
//
//   - G1: what was acknowledged is delivered, cancelled or dead;
//   - G2: what is delivered was sent, byte for byte;
//   - G3: nothing is delivered before its due time;
//   - G4: nothing is delivered twice without a [Cause], and never twice as the
//     same attempt;
//   - G6: nothing is delivered after its completion was confirmed;
//   - G8: producers are answered in time, and due jobs fire in time.
//
// A test tells it also which faults it makes, see [Checker.Fault], because they
// are causes.
//
// README.md says which test shows which guarantee, and lists the bugs that these
// tests found. With DELAYBRIDGE_SOAK set the long forms of the tests run.
package integration
