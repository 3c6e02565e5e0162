// A worker that owns its jobs, see docs/workers.md: when it dies they are at another within a second, not when their
// leases run out. Usage: node worker.mjs TARGET [MILLISECONDS PER JOB]. NATS_URL says where, if not at 127.0.0.1:4222.
import { setTimeout as sleep } from "node:timers/promises";
import { connect, nuid } from "@nats-io/transport-node";

const [target = "orders.js", ms = 100] = process.argv.slice(2);
const nc = await connect({ servers: process.env.NATS_URL ?? "127.0.0.1:4222", maxReconnectAttempts: -1 });
const name = `js-${nuid.next()}`;
const running = new Map(); // what it has: by token, how to stop it
const done = new Set(); // what it has completed, until that is answered

async function beat() {
  const body = { worker: name, queue: "workers", subjects: [target], running: [...running.keys()], done: [...done] };
  try {
    const { stale, error } = (await nc.request(`delay.hb.${name}`, JSON.stringify(body), { timeout: 1000 })).json();
    if (error) console.log(`heartbeat refused: ${error.description}`);
    for (const token of stale ?? []) running.get(token)?.abort(), done.delete(token);
  } catch { /* no bridge: the next beat says it again */ }
}

async function run(m) {
  const owned = (await nc.request(m.reply, `+CLAIM {"worker":"${name}"}`, { timeout: 2000 })).string();
  if (!owned.startsWith("+OK")) return console.log(`not ours: ${owned}`);
  const token = m.headers.get("Delay-Token"), stop = new AbortController();
  running.set(token, stop);
  console.log(`start ${m.string()} attempt ${m.headers.get("Delay-Attempt")}`);
  const finished = await sleep(Number(ms), true, { signal: stop.signal }).catch(() => false); // the work
  running.delete(token);
  if (!finished) return console.log(`lost ${m.string()}`);
  for (done.add(token); done.has(token); await sleep(1000)) { // until a bridge has answered, or a heartbeat was
    const answer = await nc.request(m.reply, "+ACK", { timeout: 1000 }).catch(() => null);
    if (answer) return done.delete(token), console.log(`done ${m.string()} ${answer.string() || "durable"}`);
  }
}

nc.subscribe(`delay.ping.${name}`, { callback: (_, m) => m.respond() }); // "are you there?"
await beat();
setInterval(beat, 2000);
console.log(`ready ${name}`);
for await (const m of nc.subscribe(target, { queue: "workers" })) run(m).catch((err) => console.log(`failed: ${err.message}`));
