// Schedules jobs over plain NATS: after a delay, at a time, many at once; moves one and cancels another.
// Usage: node producer.mjs TARGET. NATS_URL says where NATS is, if not at 127.0.0.1:4222.
import { connect, headers } from "@nats-io/transport-node";

const [target] = process.argv.slice(2);
if (!target) throw new Error("usage: node producer.mjs TARGET");
const nc = await connect({ servers: process.env.NATS_URL ?? "127.0.0.1:4222" });

// schedule resolves when the bridge holds the job, and rejects when it refuses it.
async function schedule(payload, fields) {
  const h = headers();
  for (const [name, value] of Object.entries(fields)) h.set(name, value);
  const answer = (await nc.request(`delay.to.${target}`, payload, { headers: h, timeout: 5000 })).json();
  if (answer.error) throw new Error(`${payload} is refused with ${answer.error.code}: ${answer.error.description}`);
  return answer;
}

// change asks the admin API; the result is done, or running, finished or unknown.
async function change(verb, body) {
  const answer = (await nc.request(`delay.api.${verb}`, JSON.stringify(body), { timeout: 6000 })).json();
  if (answer.error) throw new Error(`${verb} is refused with ${answer.error.code}: ${answer.error.description}`);
  console.log(`${verb} ${answer.id}: ${answer.result}`);
}

// The id makes it harmless to schedule the same job again.
const first = await schedule("order 17", { "Delay-In": "1s", "Nats-Msg-Id": "order-17" });
console.log(`${first.id} due ${first.due} stored ${first.stored}${first.duplicate ? ", as before" : ""}`);

// Headers named Delay-* control the delivery, all others travel with the job.
const at = new Date(Date.now() + 3_600_000).toISOString();
await schedule("order 18", {
  "Delay-At": at, "Nats-Msg-Id": "order-18", "Delay-Max-Attempts": "3", "Delay-Backoff": "10s,1m", Customer: "4711",
});
await change("reschedule", { id: "order-18", in: "2s" });

// Many at once: without waiting for each.
const reminders = Array.from({ length: 100 }, (_, i) =>
  schedule(`reminder ${i}`, { "Delay-In": "24h", "Nats-Msg-Id": `reminder-${i}` }));
console.log(`${(await Promise.all(reminders)).length} reminders scheduled`);
await change("cancel", { id: "reminder-0" });
await nc.drain();
