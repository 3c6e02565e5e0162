// Schedules jobs and works on them over plain NATS, then ends: with 1 if anything went another way than it should.
// Needs a bridge, such as `go run ./cmd/bridge dev`; NATS_URL says where, if not at 127.0.0.1:4222.
import assert from "node:assert/strict";
import { jetstream } from "@nats-io/jetstream";
import { connect, createInbox, headers } from "@nats-io/transport-node";

setTimeout(() => { throw new Error("the walk takes longer than 20 s"); }, 20_000).unref();
const nc = await connect({ servers: process.env.NATS_URL ?? "127.0.0.1:4222" });
const target = `orders.walk-${Date.now()}`; // new each time, so that no other worker or walk interferes
const id = `${target}-18`;

async function schedule(subject, payload, fields = {}) {
  const h = headers();
  for (const [name, value] of Object.entries(fields)) h.set(name, value);
  const answer = (await nc.request(subject, payload, { headers: h, timeout: 2000 })).string();
  console.log(`${payload} -> ${answer}`);
  return JSON.parse(answer);
}

// A worker is a queue subscription.
const deliveries = nc.subscribe(target, { queue: "workers" })[Symbol.asyncIterator]();
async function receive() {
  const { value: m } = await deliveries.next();
  console.log(`worker: ${m.string()}, due ${m.headers.get("Delay-Due")}, attempt ${m.headers.get("Delay-Attempt")}`);
  return m;
}

// Sent as a request, a settlement is confirmed by an empty answer once it is durable, or refused by one that says why.
async function settle(m, verb) {
  const answer = (await nc.request(m.reply, verb, { timeout: 2000 })).string();
  console.log(`worker: ${verb} -> ${answer || "durable"}`);
  return answer;
}

await schedule(`delay.in.1s.${target}`, "order 17");
let m = await receive();
assert.equal(m.string(), "order 17");
m.respond(); // done
assert.match(await settle(m, "-NAK"), /^-ERR/); // and that is final

// One job per id: a second one is a duplicate, unless it replaces the first.
const first = await schedule(`delay.to.${target}`, "first", { "Delay-In": "1h", "Nats-Msg-Id": id });
const again = await schedule(`delay.to.${target}`, "again", { "Delay-In": "2h", "Nats-Msg-Id": id });
assert.deepEqual([again.duplicate, again.due], [true, first.due]);

const inbox = createInbox();
const results = nc.subscribe(inbox)[Symbol.asyncIterator]();
const moved = await schedule(`delay.to.${target}`, "moved", {
  "Delay-In": "0.5s", "Nats-Msg-Id": id, "Delay-Replace": "true", "Delay-Reply-To": inbox,
});
assert.equal(moved.duplicate, false);
const unclear = await schedule(`delay.in.soon.${target}`, "unclear");
assert.equal(unclear.error.err_code, 10189);

// A JetStream publish understands the answers as well.
const js = jetstream(nc);
const ack = await js.publish(`delay.in.1h.${target}`, "third", { msgID: id });
console.log(`js.publish: stream ${ack.stream}, duplicate ${ack.duplicate}`);
assert.ok(ack.duplicate);
await assert.rejects(js.publish(`delay.in.soon.${target}`, "unclear"), { code: 10189 });

m = await receive();
assert.equal(m.string(), "moved");
assert.match(await settle(m, "finished"), /unknown verb/); // any answer but a verb changes nothing
assert.equal(await settle(m, "-NAK 200ms"), ""); // again, later
m = await receive();
assert.equal(m.headers.get("Delay-Attempt"), "2");
assert.equal(await settle(m, "+ACK reminded"), ""); // done, with a result
console.log(`result: ${(await results.next()).value.string()}`);
await nc.drain();
