// Package wal is a write-ahead log: records go to its end, a caller learns when
// they are on disk, and opening the log again replays them in order.
//
// # Promises
//
//   - Wait returns nil only when every record up to the position is on disk
//     (fdatasync). Those records are replayed by every later Open, in order, until
//     RemoveBefore removes their segment.
//   - What is replayed is always a prefix of what was appended, after whatever
//     crash: a record is never there without all those before it. The records of one
//     Append are replayed all or none, unless they take more than 16 MiB together.
//   - Open never starts silently smaller. What was cut off by a crash was never
//     reported as durable; everything else that cannot be read is ErrDamaged, and
//     nothing is changed.
//   - An error of fdatasync poisons the log: the kernel may have dropped what was
//     written and would not say so again, so it is never retried.
//   - A full disk fails those who wait, and loses nothing: what was appended goes out
//     first once there is room.
//
// # Files
//
// A directory holds a file "lock" and segments, named by their number in 16 digits
// with the suffix ".wal". All numbers are big-endian, all checksums CRC32C.
//
//	segment      header, batches, zeros
//	header       magic "DLYBRWAL", version 4 bytes, number 8, salt 8 (random),
//	             end of the segment before 8, checksum 4
//	batch        batch header, records
//	batch header magic 4 bytes, count of records 4, bytes of records 4, their
//	             checksum 4, the segment's salt 8, offset up to which the segment was
//	             synced when the batch was written 8, checksum 4
//	record       checksum 4 bytes, state 1, length of ID 2, length of data 4,
//	             due time 8, ID, data
//
// A batch header without records is a mark: all before it is synced. One stands at
// the end while nothing is being written, and is overwritten by the next batch. It
// lets Open tell a damaged last batch from one that a crash cut short. The mark at
// the end of a finished segment has 1 as the checksum of its records: there is a next
// segment.
//
// Segments are never used again, and the salt tells their batches from what a disk
// block held before. Every Open begins a new one. docs/log.md has the reasons and
// the figures.
package wal
