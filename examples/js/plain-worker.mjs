// A plain worker: a queue subscription, and the verbs of JetStream as answers. It retries a job whose work fails.
// Usage: node plain-worker.mjs TARGET. NATS_URL says where NATS is, if not at 127.0.0.1:4222.
import { connect } from "@nats-io/transport-node";

const [target] = process.argv.slice(2);
if (!target) throw new Error("usage: node plain-worker.mjs TARGET");
const nc = await connect({ servers: process.env.NATS_URL ?? "127.0.0.1:4222", maxReconnectAttempts: -1 });

// work stands for what the job asks for.
async function work(payload, attempt) {
  if (!payload) throw Object.assign(new Error("no order given"), { final: true });
  if (payload === "order 18" && attempt === "1") throw new Error("the mail server is busy");
}

// verb says how the work went: done, again in a second, or never again.
function verb(err) {
  if (!err) return "+ACK";
  return err.final ? `+TERM ${err.message}` : "-NAK 1s"; // a bare -NAK: by the job's Delay-Backoff
}

async function run(m) {
  const attempt = m.headers.get("Delay-Attempt");
  const failure = await work(m.string(), attempt).then(() => null, (err) => err);
  // Sent as a request the answer is confirmed, by an empty message once it is durable. m.respond() does not wait.
  const answer = (await nc.request(m.reply, verb(failure), { timeout: 5000 })).string();
  console.log(`${m.string()} attempt ${attempt}: ${verb(failure)} ${answer || "durable"}`);
}

const sub = nc.subscribe(target, { queue: "workers" });
process.once("SIGTERM", () => sub.drain()); // the loop ends with what has arrived
console.log("ready");
const running = new Set();
for await (const m of sub) {
  const job = run(m).catch((err) => console.log(`not confirmed, so it may come again: ${err.message}`));
  running.add(job);
  job.then(() => running.delete(job));
}
await Promise.all(running);
await nc.drain();
